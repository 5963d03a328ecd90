"""job_submit.lua, run by the Lua that slurmctld has (5.1), with Slurm's table as a stand-in.

The fields and their values are those that slurmctld 22.05.8 gave and took when the script ran in it.
"""

import json
import shutil
import subprocess
from typing import Any

import pytest

from infra.layers.slurm.conf import job_submit
from infra.settings.schema import Settings
from tests.infra.layers.slurm.cluster import SMALL, TPU, settings

UNSET = 4294967294
SCRIPT = "#!/bin/bash"
_RUN = """
slurm = { SUCCESS = 0, ERROR = -1, ESLURM_INVALID_NODE_COUNT = 2006 }
slurm.log_user = function(text) said = text end
dofile(arg[1])
local job = loadstring("return " .. arg[2])()
local code
if arg[3] == "slurm_job_modify" then code = slurm_job_modify(job, { partition = "tpu" }, {}, 1000)
else code = slurm_job_submit(job, {}, 1000) end
print(code)
print(said or "")
for _, key in ipairs({ "min_nodes", "max_nodes", "num_tasks", "req_switch", "tres_per_node" }) do
  print(key .. "=" .. tostring(job[key]))
end
"""
PLAIN, HOSTS = settings(), settings(nUnit="host")


@pytest.fixture(name="submit", scope="module")
def _submit(tmp_path_factory: pytest.TempPathFactory) -> Any:
    lua, folder = shutil.which("lua5.1"), tmp_path_factory.mktemp("lua")
    assert lua, "tools/setup.sh system installs it"
    (folder / "run.lua").write_text(_RUN)

    def run(known: Settings, function: str = "slurm_job_submit", **job: Any) -> tuple[str, dict[str, str]]:
        (folder / "job_submit.lua").write_text(job_submit.text(known))
        unset = dict.fromkeys(("min_nodes", "max_nodes", "num_tasks", "req_switch"), UNSET)
        fields = {**unset, "script": SCRIPT, **job}
        given = ", ".join(
            f"{key} = {json.dumps(value)}" for key, value in fields.items() if value is not None
        )
        line = [lua, str(folder / "run.lua"), str(folder / "job_submit.lua"), f"{{ {given} }}", function]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        code, message, *rest = done.stdout.splitlines()
        assert (code == "0") == (message == ""), done.stdout
        return message, dict(pair.split("=", 1) for pair in rest)

    return run


def nodes(count: int) -> dict[str, int]:
    return {"min_nodes": count, "max_nodes": count}


@pytest.mark.parametrize(("known", "job", "hosts", "slices"), [
    (PLAIN, {}, 4, 1),
    (PLAIN, nodes(1), 4, 1),
    (PLAIN, nodes(3), 12, 3),
    (HOSTS, {}, 4, 1),
    (HOSTS, nodes(8), 8, 2),
    (PLAIN, {"partition": "small"}, 1, 1),
    (PLAIN, {"min_mem_per_node": 665600}, 4, 1),
    (PLAIN, {"req_nodes": "tpu-0-w[0-1],tpu-0-w3"}, 4, 1),
    (PLAIN, {**nodes(2), "req_nodes": "tpu-0-w[0-3],tpu-2-w0"}, 8, 2),
    (PLAIN, {"tres_per_node": "gres:other:2"}, 4, 1),
])  # fmt: skip
def test_a_job_gets_whole_slices(
    submit: Any, known: Settings, job: dict[str, Any], hosts: int, slices: int
) -> None:
    message, after = submit(known, **job)
    assert message == ""
    assert (after["min_nodes"], after["max_nodes"], after["req_switch"]) == (
        str(hosts),
        str(hosts),
        str(slices),
    )


@pytest.mark.parametrize("tasks", [8, 16, UNSET])
def test_tasks_for_all_hosts_stay_as_they_are(submit: Any, tasks: int) -> None:
    assert float(submit(PLAIN, **nodes(2), num_tasks=tasks)[1]["num_tasks"]) == tasks


_LESS = "write -N %d or less, or raise nodeCountDynamicMax"
_OF_HOST = "a job has whole slices, with the chips of all of their hosts: leave --gres out"


@pytest.mark.parametrize(("known", "job", "expected"), [
    (PLAIN, nodes(4), f"-N 4: a job of tpu has 3 slices at most: {_LESS % 3}"),
    (HOSTS, nodes(16), f"-N 16: a job of tpu has 3 slices at most: {_LESS % 12}"),
    (HOSTS, nodes(6), "-N 6: a slice (v6e-16) of tpu has 4 hosts, and a job has whole ones: write -N 4 or 8"),
    (HOSTS, nodes(2), "-N 2: a slice (v6e-16) of tpu has 4 hosts, and a job has whole ones: write -N 4"),
    (PLAIN, {"min_nodes": 1, "max_nodes": 3},
     "-N 1-3: a job has a number of slices, not a range: write one number"),
    # As `sbatch -N 2 --ntasks-per-node=1` counts.
    (PLAIN, {**nodes(2), "num_tasks": 2},
     "--ntasks=2: the job has 8 hosts, and srun starts a task on each: leave --ntasks and --ntasks-per-node "
     "out here, or write them at srun in the job"),
    (PLAIN, {"req_nodes": "tpu-0-w0,tpu-1-w[0-3]"},
     "-w names hosts of 2 slices, the job has 1: write -N 2, or hosts of fewer slices"),
    (HOSTS, {**nodes(4), "req_nodes": "tpu-0-w[0-3],tpu-1-w[0,2]"},
     "-w names hosts of 2 slices, the job has 1: write -N 8, or hosts of fewer slices"),
    (PLAIN, {"min_mem_per_node": 716800},
     "--mem=716800M: a host of tpu has 700416 MiB for jobs: write less, or leave --mem out, since a job has "
     "its hosts for itself"),
    (PLAIN, {"min_mem_per_cpu": 8192},
     "--mem-per-cpu=8192M: a job has the 180 CPUs of its hosts, and 700416 MiB on each: leave it out"),
    (PLAIN, {"tres_per_node": "gres:tpu:2"}, f"--gres=tpu:2: {_OF_HOST}"),
    (PLAIN, {"tres_per_node": "gres:tpu"}, f"--gres=tpu: {_OF_HOST}"),
    (PLAIN, {"name": "a\nb"},
     "--job-name: it has a line break or another control character: write a name of one line"),
    (PLAIN, {"partition": "tpu,small"},
     "-p tpu,small: slices of tpu are v6e-16, of small v6e-8: name one partition"),
])  # fmt: skip
def test_what_no_slice_gives_is_refused_with_a_sentence(
    submit: Any, known: Settings, job: dict[str, Any], expected: str
) -> None:
    assert submit(known, **job)[0] == expected


@pytest.mark.parametrize("script", [None, ""])
def test_a_job_without_a_script_is_refused_unless_its_nodes_were_counted(
    submit: Any, script: str | None
) -> None:
    """cli_filter.lua of login nodes counts them; a step of fewer tasks than hosts ends slurmctld 22.05."""
    message, after = submit(PLAIN, script=script, **nodes(2))
    assert (
        message
        == "srun and salloc start a job on a login node alone, where -N counts what it counts for sbatch"
    )
    assert after["min_nodes"] == "2"
    message, after = submit(PLAIN, script=script, req_switch=2, **nodes(8))
    assert (message, after["min_nodes"], after["req_switch"]) == ("", "8", "2")


def test_switches_beside_other_hosts_are_refused(submit: Any) -> None:
    assert submit(PLAIN, req_switch=2, **nodes(2))[0] == (
        "-N 2 with --switches=2: beside --switches, -N counts hosts, and a slice of tpu has 4: "
        "leave --switches out; srun takes -n 8 or more outside of a job"
    )


def test_a_partition_that_there_isnt_is_left_to_slurm(submit: Any) -> None:
    message, after = submit(PLAIN, partition="nope", **nodes(2))
    assert (message, after["min_nodes"]) == ("", "2")


def test_a_waiting_job_keeps_whole_slices(submit: Any) -> None:
    assert submit(PLAIN, "slurm_job_modify", **nodes(8))[0] == ""
    assert submit(PLAIN, "slurm_job_modify")[0] == ""
    message, _ = submit(PLAIN, "slurm_job_modify", **nodes(3))
    assert message == (
        "NumNodes=3: a job of tpu has whole slices of 4 hosts, 3 at most: cancel it, and submit another"
    )


@pytest.mark.parametrize(("job", "expected"), [
    ({"partition": "small"},
     "Partition=small: its slices are v6e-8, and the job's are v6e-16: cancel it, and submit another"),
    ({"min_mem_per_node": 716800},
     "--mem=716800M: a host of tpu has 700416 MiB for jobs: write less, or leave --mem out, since a job has "
     "its hosts for itself"),
    ({"name": "a\tb"},
     "--job-name: it has a line break or another control character: write a name of one line"),
])  # fmt: skip
def test_a_waiting_job_gets_nothing_that_a_new_one_is_refused(
    submit: Any, job: dict[str, Any], expected: str
) -> None:
    assert submit(PLAIN, "slurm_job_modify", **job)[0] == expected


def test_the_tables_name_each_partition_with_its_largest_nodeset() -> None:
    more = {**TPU, "name": "more", "nodeCountStatic": 0, "nodeCountDynamicMax": 20}
    both = [{"name": "all", "nodesets": ["tpu", "more"]}, {"name": "b", "nodesets": ["small"]}]
    assert job_submit.tables(settings(TPU, more, SMALL, partitions=both, nUnit="host")).splitlines() == [
        "PARTITIONS = {",
        '  ["all"] = { kind = "v6e-16", hosts = 4, slices = 5, cpus = 180, memory_mib = 700416 },',
        '  ["b"] = { kind = "v6e-8", hosts = 1, slices = 1, cpus = 180, memory_mib = 1400832 },',
        "}",
        'DEFAULT = "all"',
        "COUNTS_SLICES = false",
    ]
