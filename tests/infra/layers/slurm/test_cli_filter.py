"""cli_filter.lua of login nodes, run by Lua 5.1, and then job_submit.lua with what it counted.

Options are the text that srun, salloc and sbatch 22.05.8 gave and took when the script ran in them.
"""

import shutil
import subprocess
from typing import Any

import pytest

from infra.layers.slurm.conf import job_submit
from infra.settings.schema import Settings
from tests.infra.layers.slurm.cluster import settings

_RUN = """
slurm = { SUCCESS = 0, ERROR = -1, log_user = function(text) said = text end }
slurm.log_error = slurm.log_user
dofile(arg[1])
local options = loadstring("return " .. arg[2])()
assert(slurm_cli_setup_defaults(options, true) == slurm.SUCCESS)
if slurm_cli_pre_submit(options, 0) ~= slurm.SUCCESS then
  print("refused nil")
  print("-1 " .. said)
  os.exit(0)
end
assert(slurm_cli_post_submit(0, 1, 0) == slurm.SUCCESS)
print(tostring(options.nodes) .. " " .. tostring(options.switches))
dofile(arg[3])
local least, most = string.match(options.nodes or "", "^(%d+)-?(%d*)$")
local job = {
  min_nodes = tonumber(least) or 4294967294, max_nodes = tonumber(most ~= "" and most or least) or 4294967294,
  req_switch = tonumber(options.switches) or 4294967294, partition = options.partition, script = nil,
}
print(slurm_job_submit(job, {}, 1000) .. " " .. (said or ""))
"""
PLAIN, HOSTS = settings(), settings(nUnit="host")
UNSET = {"nodes": "1-0", "switches": "unset"}
"""Options of a command without -N and --switches."""


@pytest.fixture(name="command", scope="module")
def _command(tmp_path_factory: pytest.TempPathFactory) -> Any:
    lua, folder = shutil.which("lua5.1"), tmp_path_factory.mktemp("lua")
    assert lua, "tools/setup.sh system installs it"
    (folder / "run.lua").write_text(_RUN)

    def run(known: Settings, options: dict[str, str], **environment: str) -> tuple[str, str, str]:
        """Return -N and --switches behind the filter, and what job_submit.lua says to srun with these."""
        scripts = ["cli_filter.lua", "job_submit.lua"]
        for script in scripts:
            (folder / script).write_text(job_submit.text(known, script))
        given = ", ".join(f'{key} = "{value}"' for key, value in options.items())
        line = [lua, folder / "run.lua", folder / scripts[0], f"{{ {given} }}", folder / scripts[1]]
        done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
        counted, result = done.stdout.splitlines()
        number, switches = counted.split(" ")
        code, _, message = result.partition(" ")
        assert (code == "0") == (message == ""), done.stdout
        return number, switches, message

    return run


@pytest.mark.parametrize(("known", "options", "hosts", "slices"), [
    (PLAIN, UNSET, "4", "1"),
    (PLAIN, {}, "4", "1"),
    (PLAIN, {**UNSET, "nodes": "2"}, "8", "2"),
    (PLAIN, {**UNSET, "nodes": "1", "partition": "small"}, "1", "1"),
    (HOSTS, UNSET, "4", "1"),
    (HOSTS, {**UNSET, "nodes": "8"}, "8", "2"),
    (PLAIN, {**UNSET, "nodes": "2", "partition": "tpu,nope"}, "8", "2"),
])  # fmt: skip
def test_nodes_are_counted_in_hosts_and_the_job_is_taken(
    command: Any, known: Settings, options: dict[str, str], hosts: str, slices: str
) -> None:
    assert command(known, options) == (hosts, slices, "")


_ELSEWHERE = "srun and salloc start a job on a login node alone, where -N counts what it counts for sbatch"


@pytest.mark.parametrize(("known", "options", "message"), [
    (PLAIN, {**UNSET, "nodes": "1-3"},
     "-N 1-3: a job has a number of slices, not a range: write one number"),
    (HOSTS, {**UNSET, "nodes": "6"},
     "-N 6: a slice (v6e-16) of tpu has 4 hosts, and a job has whole ones: write -N 4 or 8"),
    (PLAIN, {"nodes": "8", "switches": "1"},
     "-N 8 with --switches=1: beside --switches, -N counts hosts, and a slice of tpu has 4: leave --switches "
     "out; srun takes -n 4 or more outside of a job"),
    # slurmctld refuses such a partition.
    (PLAIN, {**UNSET, "nodes": "2", "partition": "nope"}, ""),
])  # fmt: skip
def test_what_cannot_be_counted_stays_as_it_is_and_job_submit_says_why(
    command: Any, known: Settings, options: dict[str, str], message: str
) -> None:
    assert command(known, options) == (options["nodes"], options["switches"], message)


@pytest.mark.parametrize("gres", ["tpu:1", "gres:tpu:4", "tpu"])
def test_chips_arent_counted_and_whoever_asks_for_some_is_told(command: Any, gres: str) -> None:
    """slurmctld refuses what it doesn't know before job_submit.lua sees it."""
    kind = gres.removeprefix("gres:")
    assert command(PLAIN, {**UNSET, "gres": gres})[2] == (
        f"--gres={kind}: a job has whole slices, with the chips of all of their hosts: leave --gres out"
    )
    assert command(PLAIN, {**UNSET, "gres": "other:1"})[0] == "4"


def test_what_is_counted_already_is_not_counted_again(command: Any) -> None:
    assert command(PLAIN, {"nodes": "8", "switches": "2"}) == ("8", "2", "")


@pytest.mark.parametrize("options", [UNSET, {**UNSET, "nodes": "2"}])
def test_a_step_of_a_job_keeps_its_options(command: Any, options: dict[str, str]) -> None:
    number, switches, message = command(PLAIN, options, SLURM_JOB_ID="7")
    assert (number, switches) == (options["nodes"], "unset")
    assert message == _ELSEWHERE, "a step asks slurmctld for no job; one that nobody has counted is refused"


@pytest.mark.parametrize("known", [PLAIN, HOSTS])
def test_more_slices_than_there_are_is_refused_as_for_sbatch(command: Any, known: Settings) -> None:
    most, unit = ("3", 1) if known is PLAIN else ("12", 4)
    number = str(4 * unit)
    assert command(known, {**UNSET, "nodes": number})[2] == (
        f"-N {number}: a job of tpu has 3 slices at most: write -N {most} or less, "
        "or raise nodeCountDynamicMax"
    )
