"""Valid and invalid configs, and the messages about the latter."""

from pathlib import Path

import pytest

from tests.workload.refused import check_refused
from workload import settings
from workload.errors import ClusterError, ConfigError
from workload.train import config as configs
from workload.train.cluster import Cluster, Membership
from workload.train.config import ClusterConfig

BAD = [
    (["model.layer=2"], "model.layer = 2: unknown key", "did you mean model.layers?"),
    (["modle.layers=2"], "modle = ", "did you mean model?"),
    (["model.zzz=2"], "model.zzz", "remove it; known are layers"),
    (["model=3"], "model = 3: must be a table", "write [model]"),
    (["model.layers=0"], "model.layers = 0: must be at least 1", "the default is 2"),
    (["model.layers=10000000000"], "model.layers = 10000000000: must be at most 10000", "the default is 2"),
    (["train.steps=2147483648"], "train.steps = 2147483648: must be at most 2147483647", "60"),
    ([f"optimizer.learning_rate={10**400}"], "optimizer.learning_rate = 1000000", "write a number"),
    (["model.layers=2.5"], "model.layers = 2.5: must be a whole number", "write digits only"),
    (["compute.dtype=float16"], 'compute.dtype = "float16": must be one of float32, bfloat16', '"float32"'),
    (["model.layers=true"], "model.layers = true: must be a whole number", "digits"),
    (["compute.dtype=16"], "compute.dtype = 16: must be text", "put it in quotes"),
    (["model.rope_theta=0"], "model.rope_theta = 0: must be greater than 0", "default"),
    (["model.d_model=130"], "model.d_model = 130: must be a multiple of model.heads, 4", "128 would do"),
    (["model.d_model=12"], "model.heads = 4: leaves heads of 3; RoPE turns pairs", "6 or a divisor"),
    (
        ["optimizer.warmup_steps=60"],
        "optimizer.warmup_steps = 60: must be less than train.steps, 60",
        "tenth",
    ),
    (["optimizer.final_fraction=1.5"], "final_fraction = 1.5: must be 0 to 1", "0.1"),
    (["optimizer.beta1=1"], "optimizer.beta1 = 1: must be at least 0 and less than 1", "0.9"),
    (["train.seed=-1"], "train.seed = -1: must be 0 to 2147483647", "default"),
    (["model.kv_heads=3"], "model.kv_heads = 3: must divide model.heads, 4", "a divisor, or 0"),
    (
        ["model.rope_scaling.kind=ntk"],
        'model.rope_scaling.kind = "ntk": must be one of none, linear',
        '"none"',
    ),
    (
        ["model.rope_scaling={kind='yarn',beta_fast=1,beta_slow=2}"],
        "beta_fast = 1: must be more than beta_slow, 2",
        "32 and 1",
    ),
    (
        ["model.rope_scaling={kind='llama3',low_frequency_factor=4}"],
        "low_frequency_factor = 4: must be less than high_frequency_factor, 4",
        "1 and 4",
    ),
    (["train.accumulate=3"], "train.accumulate = 3: must divide train.batch_size, 16", "1, or a divisor"),
    (["compute.remat=[]"], "compute.remat = []: is empty", '"save:attn_z"'),
    (["compute.flags=vmen"], "compute.flags = ['vmen']: must be auto, none, or several of vmem", "e.g."),
    (["compute.remat=most"], "'most' is none of none, full, dots", '["full"]'),
    (["compute.remat=[true]"], "compute.remat[0] = true: must be text", "put it in quotes"),
    (['compute.remat=["save:logits"]'], "'save:logits' is none of", '["full"]'),
    (
        ["checkpoint.preemption_every_h=inf"],
        "preemption_every_h = Infinity: must be finite",
        "write a number",
    ),
    (["optimizer.weight_decay=nan"], "optimizer.weight_decay = NaN: must be finite", "write a number"),
    (["model.qk_norm=true", "model.qkv_bias=true"], "model.qkv_bias = true: excludes model.qk_norm", ""),
    (["train.steps"], "--set = train.steps: must read key=value", "--set train.steps=20"),
    (["train.steps.more=2"], "--set = train.steps.more=2: steps is not a table", "name a table.key"),
]


@pytest.mark.parametrize(("overrides", "message", "fix"), BAD, ids=[case[0][0] for case in BAD])
def test_bad_setting_is_refused_with_its_key_value_rule_and_fix(
    overrides: list[str], message: str, fix: str
) -> None:
    check_refused(overrides, message, fix)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as refusal:
        configs.load("tiny.toml", ["model.layers=0", "train.stepz=1", "optimizer.beta1=2"])
    assert {problem.path for problem in refusal.value.problems} == {
        "model.layers",
        "train.stepz",
        "optimizer.beta1",
    }
    assert "3 problems" in str(refusal.value)


def test_every_packaged_config_loads() -> None:
    assert "tiny.toml" in settings.packaged(configs.PACKAGED)
    for name in settings.packaged(configs.PACKAGED):
        configs.load(name)


def test_a_file_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[train]\nsteps = 30\n[optimizer]\nlearning_rate = 1\n")
    config = configs.load(str(path), ["train.batch_size=4", "compute.dtype=bfloat16"])
    assert (config.train.steps, config.train.batch_size) == (30, 4)
    assert config.optimizer.learning_rate == 1.0
    assert config.compute.dtype == "bfloat16"


@pytest.mark.parametrize(("text", "message"), [("[train", "is not TOML"), (None, "no such file or packaged")])
def test_unreadable_file(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "broken.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        configs.load(str(path))


def test_a_config_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"CONFIG = \S+broken.toml: can't be read: 'utf-8' codec"):
        configs.load(str(path))
    path.unlink()
    path.symlink_to("/proc/self/mem")  # refuses even root
    with pytest.raises(ConfigError, match=r"can't be read: Input/output error\n    fix: "):
        configs.load(str(path))


def test_identity_holds_what_the_losses_depend_on() -> None:
    identity = configs.load("tiny.toml").identity()
    assert (
        identity
        == configs.load(
            "tiny.toml", ["checkpoint.keep=9", "data.path=elsewhere", "train.accumulate=2"]
        ).identity()
    )
    assert identity != configs.load("tiny.toml", ["train.seed=1"]).identity()
    assert identity != configs.load("tiny.toml", ["data.sequence_length=32"]).identity()


GOOD = {"WORKER_COUNT": "4", "WORKER_ID": "2", "COORDINATOR_ADDRESS": "10.0.0.2:8476"}


def test_membership() -> None:
    assert Membership.from_environment(GOOD) == Membership(2, 4, "10.0.0.2:8476")
    assert Membership.from_environment({**GOOD, "SLICE_COUNT": "2"}).slices == 2
    assert Membership.from_environment({}) == Membership(0, 1, "")
    assert Membership.from_environment({"WORKER_COUNT": "1"}) == Membership(0, 1, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORKER_ID": None}, r"\$WORKER_ID = \(not set\)"),
        ({"WORKER_ID": ""}, r"\$WORKER_ID = \(not set\)"),
        ({"WORKER_ID": "4"}, r"\$WORKER_ID = '4': must be a whole number from 0 to 3"),
        ({"WORKER_ID": "-1"}, r"\$WORKER_ID = '-1'"),
        ({"WORKER_COUNT": "many"}, r"\$WORKER_COUNT = 'many'"),
        ({**GOOD, "SLICE_COUNT": "3"}, r"\$SLICE_COUNT = 3: must divide \$WORKER_COUNT, 4"),
        ({**GOOD, "SLICE_COUNT": "none"}, r"\$SLICE_COUNT = 'none': must be a whole number from 1 to 4"),
        ({"COORDINATOR_ADDRESS": None}, r"\$COORDINATOR_ADDRESS = '': must read host:port"),
        ({"COORDINATOR_ADDRESS": "10.0.0.2"}, r"\$COORDINATOR_ADDRESS = '10.0.0.2'"),
    ],
)
def test_a_worker_that_does_not_know_who_it_is_stops(change: dict[str, str | None], message: str) -> None:
    environment = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        Membership.from_environment(environment)


def test_a_worker_that_jax_numbers_otherwise_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of `agree` would come from another worker than worker 0."""
    monkeypatch.setattr("jax.distributed.initialize", lambda *_, **__: None)
    monkeypatch.setattr("jax.config.update", lambda *_: None)
    monkeypatch.setattr("jax.process_index", lambda: 1)
    with pytest.raises(ClusterError, match=r"\$WORKER_ID is 2, but JAX's process index is 1\n    fix: set"):
        Cluster.join(Membership.from_environment(GOOD), ClusterConfig())
    assert Cluster.join(Membership(1, 4, "10.0.0.2:8476"), ClusterConfig()).membership.worker == 1


def test_a_config_may_have_the_name_of_the_packaged_one_that_it_adds_to(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text('base = "tiny.toml"\n[train]\nsteps = 77\n')
    config = configs.load(str(tmp_path / "tiny.toml"))
    assert (config.train.steps, config.train.batch_size) == (77, 16)


def test_configs_that_add_to_one_another_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "b.toml"\n')
    (tmp_path / "b.toml").write_text('base = "./a.toml"\n')
    with pytest.raises(ConfigError, match=r"base = './a.toml': must name another config"):
        configs.load(str(tmp_path / "a.toml"))
