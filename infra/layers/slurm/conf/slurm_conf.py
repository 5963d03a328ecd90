"""slurm.conf and cgroup.conf, of Slurm 22.05. https://slurm.schedmd.com/archive/slurm-22.05.8/slurm.conf.html"""

from __future__ import annotations

from infra.layers.slurm import names
from infra.layers.slurm.conf import accounting, nodes
from infra.layers.slurm.settings import SlurmSettings
from infra.settings.schema import Settings

CGROUP = "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainDevices=no\nConstrainRAMSpace=no\n"
"""A job has its hosts for itself: cgroups confine nothing, and no plugin of slurm.conf uses them.

slurmd loads one of cgroups all the same. That of v2 asks systemd for a scope; that of v1 does nothing until
it is used, on hosts with v2, too (tests/slurm/inside.py).
https://slurm.schedmd.com/archive/slurm-22.05.8/cgroup_v2.html
"""
_YEAR_S = 365 * 86400
_HELD_S, _LOOK_S = 30, 5
_HEAD = "# Made of {file}, and made anew: change the settings there, then run tpu up {environment} slurm."


def text(settings: Settings, address: str) -> str:
    """Return slurm.conf; `address`: internal address of the controller."""
    desired, environment = settings[SlurmSettings], settings.environment
    low, high = names.SRUN_PORTS
    kept = nodes.always_on(settings)
    values = {
        "ClusterName": names.name(settings),
        "SlurmctldHost": f"{names.controller(settings)}({address})",
        "SlurmctldPort": names.SLURMCTLD,
        "SlurmdPort": names.SLURMD,
        "SrunPortRange": f"{low}-{high}",
        "AuthType": "auth/munge",
        # So long is a job held that is queued again (120 s by default): its earlier credentials end first.
        "AuthInfo": f"cred_expire={_HELD_S}",
        "CredType": "cred/munge",
        "SlurmUser": "slurm",
        # Hosts get these files from the controller, and their addresses from their own registration.
        "SlurmctldParameters": "enable_configless,idle_on_node_suspend,cloud_reg_addrs",
        # CPUs and memory are those of facts.toml, whatever a host registers.
        "SlurmdParameters": "config_overrides",
        "StateSaveLocation": names.STATE_SAVE,
        "SlurmdSpoolDir": "/var/spool/slurmd",
        "SlurmctldPidFile": "/run/slurmctld.pid",
        "SlurmdPidFile": "/run/slurmd.pid",
        "MailProg": "/bin/true",
        "MpiDefault": "none",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        # workload/host/slurmd/epilog.py, beside true(1): slurmd 22.05 drains hosts that lack an Epilog after
        # their first job, as those that started before this one would.
        "Epilog": "/usr/bin/true*",
        "JobAcctGatherType": "jobacct_gather/none",
        "PropagateResourceLimits": "NONE",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CPU",
        "TopologyPlugin": "topology/tree",
        "TopologyParam": "SwitchAsNodeRank",
        "TreeWidth": 65533,
        "SchedulerType": "sched/backfill",
        # A job waits until its slices are whole, instead of taking hosts of more of them. Jobs that 2 s of
        # scheduling haven't come to, and held ones, are scheduled 5 s later
        # (docs/internals/log.md; default 60 s).
        "SchedulerParameters": f"max_switch_wait={_YEAR_S},sched_interval={_LOOK_S}",
        "JobSubmitPlugins": "lua",
        # The fate and output file of a job are known for a day after its end (default 300 s, of 10,000 jobs).
        "MinJobAge": 86400,
        "MaxJobCount": 100000,
        "JobRequeue": 1,
        "ReturnToService": 1,
        "SlurmdTimeout": 60,
        "KillWait": 30,
        "BatchStartTimeout": 60,
        "ResumeProgram": names.RESUME,
        "SuspendProgram": names.SUSPEND,
        "ResumeFailProgram": names.RESUME_FAILED,
        "ResumeTimeout": desired.resume_timeout_s,
        "SuspendTimeout": 60,  # longer than a look of the daemon: until then the hosts are nobody's
        "SuspendTime": desired.suspend_time_s,
        "ResumeRate": 0,
        "SuspendRate": 0,
        **({"SuspendExcNodes": kept} if kept else {}),
        "PrivateData": "cloud",  # sinfo shows nodes that are powered down, too
        **accounting.of_slurm_conf(settings, address),
    }
    head = _HEAD.format(file=f"Pulumi.{environment}.yaml", environment=environment)
    lines = [head, *(f"{key}={value}" for key, value in values.items())]
    return "\n".join([*lines, *nodes.node_lines(settings), *nodes.partition_lines(settings), ""])
