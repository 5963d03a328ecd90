"""Files of Slurm, to the letter: `golden/` holds what slurmctld 22.05.8 of Debian 12 was started with."""

from pathlib import Path

import pytest

from infra.layers.slurm import conf, names
from infra.layers.slurm.conf import accounting, exports, nodes
from infra.layers.slurm.settings import SlurmSettings
from infra.layers.slurm.slices import Reached
from tests.infra.layers.slurm.cluster import SMALL, TPU, settings

GOLDEN = Path(__file__).parent / "golden"
REACHED = Reached("10.64.32.9", "10.64.32.9:/home")
TEAMS = [
    {"name": "vision", "users": ["ada_example_com", "bob_example_com"], "fairshare": 3, "maxHosts": 8},
    {"name": "text", "users": ["eve_example_com"], "maxJobs": 2},
]
CLUSTERS = {"plain": settings(), "accounting": settings(accounting=True, accounts=TEAMS)}


def lines(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (line.partition("=") for line in text.splitlines())}


@pytest.mark.parametrize(("cluster", "name"), [
    *(("plain", name) for name in conf.files(CLUSTERS["plain"], REACHED)),
    ("accounting", conf.SLURM), ("accounting", conf.SLURMDBD),
])  # fmt: skip
def test_a_file_is_to_the_letter(cluster: str, name: str) -> None:
    text = conf.files(CLUSTERS[cluster], REACHED)[name]
    assert text == (GOLDEN / f"{cluster}-{name}").read_text()


def test_without_accounting_there_is_no_database() -> None:
    assert conf.SLURMDBD not in conf.files(CLUSTERS["plain"], REACHED)
    assert "Accounting" not in conf.files(CLUSTERS["plain"], REACHED)[conf.SLURM]


def test_limits_hold_only_where_there_are_accounts() -> None:
    text = conf.files(settings(accounting=True), REACHED)[conf.SLURM]
    assert "AccountingStorageType=accounting_storage/slurmdbd" in text
    assert "Enforce" not in text


def test_accounts_are_made_with_their_limits_and_users() -> None:
    commands = [" ".join(arguments) for arguments in accounting.sacctmgr(CLUSTERS["accounting"])]
    where = "modify account where Name=%s Cluster=slurm-dev set"
    assert commands == [
        "add account vision Cluster=slurm-dev",
        f"{where % 'vision'} Fairshare=3 GrpTRES=node=8 GrpJobs=-1 QosLevel=normal",
        "add user ada_example_com Account=vision Cluster=slurm-dev",
        "add user bob_example_com Account=vision Cluster=slurm-dev",
        "add account text Cluster=slurm-dev",
        f"{where % 'text'} Fairshare=1 GrpTRES=node=-1 GrpJobs=2 QosLevel=normal",
        "add user eve_example_com Account=text Cluster=slurm-dev",
    ]


def test_a_qos_has_its_limits_before_accounts_may_use_it() -> None:
    qos = {"name": "debug", "priority": 10, "maxHosts": 8, "maxJobsPerUser": 1}
    team = {"name": "text", "users": ["eve"], "qos": ["debug"]}
    known = settings(accounting=True, accounts=[team], qos=[qos])
    commands = [" ".join(arguments) for arguments in accounting.sacctmgr(known)]
    assert commands[:2] == [
        "add qos debug",
        "modify qos where Name=debug set Priority=10 GrpTRES=node=8 MaxTRESPerUser=node=-1 MaxJobsPerUser=1",
    ]
    assert commands[3].endswith("QosLevel=normal,debug")
    assert "PriorityWeightQOS=100000" in conf.files(known, REACHED)[conf.SLURM]


def test_no_job_spans_two_nodesets() -> None:
    topology = nodes.topology(CLUSTERS["plain"])
    assert "SwitchName=tpu Switches=tpu-[0-2]" in topology.splitlines()
    assert "SwitchName=small Switches=small-0" in topology.splitlines()
    assert not [line for line in topology.splitlines() if "tpu" in line and "small" in line]


def test_a_second_number_is_always_in_brackets() -> None:
    """Slurm calls small-[0]-w0 an invalid list."""
    files = conf.files(CLUSTERS["plain"], REACHED)
    assert all("]-w[" in word for text in files.values() for word in text.split() if "]-w" in word)


def test_static_hosts_and_those_to_preserve_are_never_suspended() -> None:
    assert nodes.always_on(settings()) == "tpu-[0]-w[0-3]"
    assert nodes.always_on(settings({**TPU, "preserveTpu": True}, SMALL)) == "tpu-[0-2]-w[0-3]"
    assert nodes.always_on(settings(SMALL)) == ""
    assert "SuspendExcNodes" not in conf.files(settings(SMALL), REACHED)[conf.SLURM]


def test_partitions_may_have_several_nodesets_and_a_limit() -> None:
    more = {**TPU, "name": "more", "nodeCountStatic": 0}
    parts = [{"name": "a", "nodesets": ["tpu"]},
             {"name": "b", "nodesets": ["tpu", "more"], "default": True, "maxHours": 24}]  # fmt: skip
    text = conf.files(settings(TPU, more, partitions=parts), REACHED)[conf.SLURM]
    assert (
        "PartitionName=b Nodes=tpu-[0-2]-w[0-3],more-[0-2]-w[0-3] Default=YES MaxTime=24:00:00 "
        "OverSubscribe=EXCLUSIVE State=UP"
    ) in text.splitlines()
    assert "PartitionName=a Nodes=tpu-[0-2]-w[0-3] Default=NO MaxTime=INFINITE" in text


def test_two_hundred_slices_are_two_hundred_switches() -> None:
    many = settings({**TPU, "nodeCountDynamicMax": 800})
    files = conf.files(many, REACHED)
    assert len(files[conf.TOPOLOGY].splitlines()) == 201
    assert len(files[conf.SLURM].splitlines()) < 60


def test_the_seeds_job_fits_a_hosts_memory() -> None:
    assert int(lines("\n".join(nodes.node_lines(settings())).split()[2])["RealMemory"]) > 650 * 1024


def test_home_is_exported_to_hosts_and_login_nodes_alone() -> None:
    login = "slurm-dev-login-0.us-east5-b.c.my-project.internal(rw,sync,no_subtree_check,no_root_squash)"
    assert exports.text(settings()) == f"/home {login} 10.64.32.0/20(rw,sync,no_subtree_check,root_squash)\n"
    assert exports.text(settings(homeStorage="filestore")) == ""


def test_the_ports_of_programs_and_of_callbacks_dont_meet() -> None:
    from infra.layers.network.firewall import SLICE_PORTS

    low, _ = names.SRUN_PORTS
    assert low > max(int(port.rpartition("-")[2]) for port in SLICE_PORTS)
    assert SlurmSettings(nodesets=()).resume_timeout_s >= 1200, "a Spot slice takes that long"
