"""Optimizers of optax by name, and schedules: refused in one message, sharded, and resumed to the bit."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp  # type: ignore[import-untyped]
import pytest

from tests.workload.refused import check_refused
from tests.workload.slice import RunFolder, command, cpu_devices, train
from tests.workload.test_modules import EXAMPLES, config_of
from tools.blocks import ROOT
from workload.__main__ import main
from workload.runs.store import FolderStore
from workload.train import checksums, optimizer
from workload.train import config as configs
from workload.train.config import Config, TrainConfig
from workload.train.optimizer_config import OptimizerConfig
from workload.train.past import Past
from workload.train.sharding import make_mesh
from workload.train.steps import make_step
from workload.train.stored_steps import FOLDER

ADAFACTOR = ("optimizer.name=adafactor", "optimizer.options={momentum=0.9, min_dim_size_to_factor=8}")

BAD = [
    (
        ["optimizer.name=adafctor"],
        'optimizer.name = "adafctor": must be an optimizer of optax',
        "did you mean adafactor?",
    ),
    (["optimizer.name=zzzz"], "optimizer.name", "e.g. adabelief"),
    (["optimizer.name=clip_by_global_norm"], "must be an optimizer of optax", "e.g. adabelief"),
    (["optimizer.name=scale_by_learning_rate"], "must be an optimizer of optax", "e.g. adabelief"),
    (["optimizer.name=os"], "must be an optimizer of optax", ""),
    (["optimizer.name=3"], "optimizer.name = 3: must be text", "quotes"),
    (["optimizer.name=lbfgs"], "from their gradients and a schedule alone", "e.g. adafactor"),
    (["optimizer.name=sm3"], "from their gradients and a schedule alone", "e.g. adafactor"),
    (["optimizer.name=noisy_sgd"], "a state that a checkpoint can't hold", "e.g. adafactor"),
    (["optimizer.name=schedule_free_sgd"], "evaluates other parameters than it updates", "e.g. adafactor"),
    (
        ["optimizer.name=sgd", "optimizer.options.momentun=0.9"],
        "optimizer.options.momentun = 0.9: is no option of sgd",
        "did you mean optimizer.options.momentum?",
    ),
    (["optimizer.name=sign_sgd", "optimizer.options.zz=0.9"], "is no option of sign_sgd", "takes none"),
    (
        ["optimizer.name=sgd", "optimizer.options.momentum=much"],
        'momentum = "much": must be a finite number',
        "",
    ),
    (["optimizer.name=sgd", "optimizer.options.momentum=inf"], "must be a finite number", ""),
    (["optimizer.name=sgd", "optimizer.options.momentum=true"], "must be a finite number", ""),
    (
        ["optimizer.name=sgd", "optimizer.options.nesterov=1"],
        "nesterov = 1: must be true or false",
        "default is False",
    ),
    (
        ["optimizer.name=sgd", "optimizer.options.accumulator_dtype=int8"],
        "must be one of float32, bfloat16",
        "",
    ),
    (
        ["optimizer.name=adafactor", "optimizer.options.min_dim_size_to_factor=1.5"],
        "must be a whole number",
        "default is 128",
    ),
    (
        ["optimizer.name=adafactor", "optimizer.options.weight_decay_mask=true"],
        "a file can't set it",
        "remove it",
    ),
    (
        ["optimizer.name=muon", "optimizer.options.preconditioning=none"],
        "must be one of frobenius, spectral",
        "frobenius",
    ),
    (["optimizer.name=muon", "optimizer.options.ns_coeffs=[1, 2]"], "must be a list of 3 numbers", ""),
    (
        ["optimizer.name=sgd", "optimizer.options.learning_rate=1"],
        "has a setting of its own",
        "set optimizer.learning_rate",
    ),
    (["optimizer.options.b1=0.8"], "has a setting of its own", "set optimizer.beta1 instead"),
    (
        ["optimizer.name=lion", "optimizer.beta2=0.99"],
        "optimizer.beta2 = 0.99: is AdamW's",
        "set optimizer.options.b2",
    ),
    (["optimizer.name=sgd", "optimizer.beta2=0.99"], "optimizer.beta2 = 0.99: is AdamW's", "remove it"),
    (
        ["optimizer.name=dpsgd"],
        "optimizer.options.l2_norm_clip = (not set): is required by dpsgd",
        "add l2_norm_clip",
    ),
    (["optimizer.options=3"], "optimizer.options = 3", "keys with values"),
    (["optimizer.decay_steps=5"], "decay_steps = 5: is of the schedule wsd", "wsd"),
    (
        ["optimizer.schedule=wsd", "optimizer.decay_steps=51"],
        "must leave optimizer.warmup_steps, 10, of train.steps, 60",
        "at most 50",
    ),
    (["optimizer.schedule=wsd", "optimizer.warmup_steps=55"], "decay_steps = 6: must leave", "at most 5"),
]


@pytest.mark.parametrize(("overrides", "message", "fix"), BAD, ids=[" ".join(case[0]) for case in BAD])
@pytest.mark.filterwarnings("ignore:Specifying a key")
def test_an_optimizer_that_cant_be_is_refused_with_its_settings(
    overrides: list[str], message: str, fix: str
) -> None:
    check_refused(overrides, message, fix)


def test_a_list_is_given_as_numbers_and_a_counted_schedule_isnt_needed() -> None:
    config = configs.load("tiny.toml", ["optimizer.name=prodigy", "optimizer.options={betas=[0.8, 0.9]}"])
    state = optimizer.build(config).init({"up": jnp.ones((4, 4))})
    assert (int(optimizer.finished(state)), optimizer.restarts(state)) == (0, False)


def test_a_name_is_checked_without_a_device() -> None:
    """Several workers meet before JAX looks for devices."""
    script = (
        "from jax._src import xla_bridge; from workload.train import config;"
        'loaded = [config.load("tiny.toml", [f"optimizer.name={name}"]) for name in ("muon", "adafactor")];'
        "raise SystemExit(len(xla_bridge._backends))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, cwd=ROOT).returncode == 0


def test_settings_at_their_defaults_are_none_of_a_runs_identity() -> None:
    """Runs that began before there were names continue."""
    known = configs.load("tiny.toml").identity()["optimizer"]
    assert {"name", "options", "decay_steps"}.isdisjoint(known)
    other = configs.load("tiny.toml", [*ADAFACTOR]).identity()["optimizer"]
    assert other["name"] == "adafactor"
    assert other["options"] == {"momentum": 0.9, "min_dim_size_to_factor": 8}


def rates(**settings: Any) -> list[float]:
    chosen = OptimizerConfig(learning_rate=1.0, final_fraction=0.0, warmup_steps=2, **settings)
    return [float(x) for x in optimizer.learning_rates(Config(optimizer=chosen, train=TrainConfig(steps=10)))]


def test_wsd_warms_up_stays_and_decays() -> None:
    assert rates(schedule="wsd", decay_steps=4) == [0, 0.5, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    assert rates(schedule="wsd") == [0, 0.5, *[1] * 8], "a tenth: of ten steps one, which begins at the peak"
    assert rates(schedule="wsd", decay_steps=8) == rates(schedule="linear"), "no stable part"


def test_masks_and_matrices_are_given_to_an_optimizer_that_takes_them() -> None:
    params = {
        "layers": {"up_NxDxF": jnp.ones((2, 4, 8)), "mlp_norm_NxD": jnp.ones((2, 4))},
        "embed_VxD": jnp.ones((8, 4)),
    }
    gradients = jax.tree.map(jnp.zeros_like, params)

    def moved(name: str, **options: Any) -> dict[str, float]:
        settings = OptimizerConfig(name=name, options=options, learning_rate=1.0, warmup_steps=0)
        made = optimizer.build(Config(optimizer=settings))
        updates, _ = made.update(gradients, made.init(params), params)
        leaves = jax.tree_util.tree_leaves_with_path(updates)
        return {path[-1].key: float(jnp.abs(leaf).max()) for path, leaf in leaves}

    assert moved("lion", weight_decay=0.5) == {"up_NxDxF": 0.5, "mlp_norm_NxD": 0.0, "embed_VxD": 0.5}
    assert moved("muon", weight_decay=0.5) == {"up_NxDxF": 0.5, "mlp_norm_NxD": 0.0, "embed_VxD": 0.0}, (
        "Muon's are the layers' matrices alone"
    )


def test_muon_turns_each_layers_matrix_alone() -> None:
    up = jax.random.normal(jax.random.key(0), (2, 4, 8))
    settings = OptimizerConfig(name="muon", learning_rate=1.0, warmup_steps=0, clip_norm=1e9)
    made = optimizer.build(Config(optimizer=settings))

    def update(value: jax.Array) -> jax.Array:
        params = {"layers": {"up_NxDxF": value}}
        updates, _ = made.update(params, made.init(params), params)
        result: jax.Array = updates["layers"]["up_NxDxF"]
        return result

    whole = update(up)
    for layer in range(2):
        np.testing.assert_allclose(whole[layer], update(up[layer : layer + 1])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "adafactor", "lion", "muon", "sgd", "prodigy"])
def test_a_state_is_split_as_its_parameters(name: str) -> None:
    options = {"min_dim_size_to_factor": 8, "momentum": 0.9} if name == "adafactor" else {}
    config = configs.load("tiny.toml", ["model.vocab_size=264", "model.layers=2"])
    config = replace(config, optimizer=OptimizerConfig(name=name, options=options))
    with cpu_devices(4) as devices:
        step = make_step(config, make_mesh(config.mesh, [devices]), "cpu")
        leaves = jax.tree_util.tree_leaves_with_path(step.state["opt_state"])
        for path, leaf in leaves:
            whole = leaf.sharding.is_fully_replicated
            assert whole == (leaf.ndim < 2 or "norm" in str(path)), (path, leaf.shape)
        held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(step.state))
        assert held == optimizer.state_bytes(config, step.state["params"])
        params = step.first_params()
        state = step.first_optimizer_state(params)
        for (path, leaf), part in zip(leaves, jax.tree.leaves(state), strict=True):
            assert part.sharding.is_equivalent_to(leaf.sharding, leaf.ndim), path


@pytest.mark.slow
@pytest.mark.usefixtures("training")
@pytest.mark.parametrize("settings", [
    ADAFACTOR, ("optimizer.name=muon",), ("optimizer.name=lion", "optimizer.options={mu_dtype='bfloat16'}"),
    ("optimizer.name=madgrad",),
], ids=["adafactor", "muon", "lion", "madgrad"])  # fmt: skip
def test_a_run_of_another_optimizer_ends_with_the_same_bits_after_a_loss_of_steps(
    settings: tuple[str, ...], tmp_path: Path
) -> None:
    line = [*command("run", 4, 2, *settings, "optimizer.schedule=wsd"), "--dir", str(tmp_path)]
    assert train(line) == 0
    run = RunFolder(tmp_path / "runs/run")
    ended, losses = run.json("final.json"), run.losses()
    shutil.rmtree(run.path / "checkpoints/4")
    (run.path / "final.json").unlink()
    assert train(line) == 0
    assert [event["step"] for event in run.events("restore")] == [2]
    assert run.json("final.json") == ended
    assert run.losses() == losses
    assert train([*line, "--set=optimizer.name=sgd", "--set=optimizer.options={}"]) == 2
    assert main(["checkpoints", "verify", str(run.path)]) == 0


@pytest.mark.parametrize("earlier", [True, False])
def test_a_checkpoint_of_narrow_parameters_is_read_in_the_dtypes_that_it_was_saved_in(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    config, store = config_of("encoder:Model", {}), FolderStore(tmp_path)
    exact = config.identity() | ({} if earlier else {"moments": "float32"})
    store.write("config.json", json.dumps({"exact": exact, "rounding": {}}).encode())
    params = {"up": jnp.ones(3, jnp.bfloat16)}
    moments = optimizer.build(config, earlier).init(params)
    state = {"params": params, "opt_state": jax.tree.map(lambda leaf: leaf + leaf.size, moments)}
    kept = {leaf.dtype.name for leaf in jax.tree.leaves(moments) if leaf.ndim}
    assert kept == ({"bfloat16", "float32"} if earlier else {"float32"})  # AdamW's first moment has a setting
    ocp.PyTreeCheckpointer().save(tmp_path / FOLDER / "2", state)
    assert checksums.digests(Past.read(store).restore(2, whole_state=True)) == checksums.digests(state)
