"""Files of Slurm as pure functions of the settings: what the controller writes, and hosts get from it."""

from infra.layers.slurm.conf import accounting, job_submit, nodes, slurm_conf
from infra.layers.slurm.slices import Reached
from infra.settings.schema import Settings

SLURM, TOPOLOGY, CGROUP, JOB_SUBMIT = "slurm.conf", "topology.conf", "cgroup.conf", "job_submit.lua"
SLURMDBD, CLI_FILTER = "slurmdbd.conf", "cli_filter.lua"


def files(settings: Settings, reached: Reached) -> dict[str, str]:
    """Return the files of /etc/slurm on the controller, by name."""
    result = {
        SLURM: slurm_conf.text(settings, reached.controller),
        TOPOLOGY: nodes.topology(settings),
        CGROUP: slurm_conf.CGROUP,
        JOB_SUBMIT: job_submit.text(settings),
    }
    database = accounting.slurmdbd(settings)
    return {**result, SLURMDBD: database} if database else result


def of_login(settings: Settings, reached: Reached) -> dict[str, str]:
    """Return the files of /etc/slurm on a login node, by name: nothing that daemons alone read."""
    text = f"{slurm_conf.text(settings, reached.controller)}CliFilterPlugins=lua\n"
    return {SLURM: text, CLI_FILTER: job_submit.text(settings, CLI_FILTER)}
