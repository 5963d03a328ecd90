"""Modules of flax in the trainer: killed twice and resumed to the bit, on any mesh, and what is refused."""

import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file

from tests.workload.slice import Command, RunFolder, cpu_devices, train
from tools.blocks import ROOT
from workload.__main__ import main
from workload.errors import ConfigError, HopelessError
from workload.modules import products, source
from workload.modules.config import ModuleConfig
from workload.runs.store import FolderStore
from workload.train import config as configs
from workload.train import loop, module_step
from workload.train import record as records
from workload.train.module_step import ModuleStep, open_module, partition
from workload.train.record import RunRecord
from workload.train.sharding import by_slice, make_mesh

EXAMPLES = ROOT / "examples" / "flax"
SMALL = "{layers=1, width=16, heads=2}"
SETTINGS = {
    "transformer:Model": SMALL,
    "mixture:Model": "{layers=1, width=16, heads=2, experts=4}",
    "encoder:Model": SMALL,
    "of_linen:Model": "{width=16}",
}
DAILY = ("encoder:Model", "of_linen:Model")
"""With a loss and random numbers of its own, and of linen; each costs four starts."""


@pytest.fixture(autouse=True)
def _in_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))  # taken out again


def line(module: str, name: str, root: Path, *more: str) -> list[str]:
    settings = (
        f"model.module={module}", f"model.settings={SETTINGS.get(module, '{}')}", "train.steps=6",
        "train.batch_size=8", "data.sequence_length=16", "checkpoint.every_steps=2",
        "optimizer.warmup_steps=1", *more,
    )  # fmt: skip
    words = [f"--set={setting}" for setting in settings]
    return ["train", "transformer.toml", "--name", name, "--dir", str(root), *words]


def four_devices() -> None:
    jax.config.update("jax_num_cpu_devices", 4)


def dies_after(step: int, folder: Path) -> None:
    """Kill this process once step `step + 1` is computed and checkpoint `step` is complete."""
    four_devices()
    report: Callable[..., None] = loop.Run._report

    def dying(self: Any, number: int) -> None:
        report(self, number)
        if number == step + 1:
            while not (folder / "checkpoints" / str(step) / "commit_success.txt").exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    loop.Run._report = dying  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.usefixtures("training")
@pytest.mark.parametrize(
    "module",
    [pytest.param(name, marks=[pytest.mark.prove] * (name not in DAILY)) for name in SETTINGS],
)
def test_a_module_killed_twice_ends_with_the_bits_of_one_left_alone(module: str, tmp_path: Path) -> None:
    undisturbed = Command(line(module, "left", tmp_path), tmp_path / "left.log", prepare=four_devices)
    assert undisturbed.wait() == 0, undisturbed.log.read_text()
    run, left = (RunFolder(tmp_path / "runs" / name) for name in ("killed", "left"))
    for step in (2, 4):
        killed = Command(
            line(module, "killed", tmp_path),
            tmp_path / "killed.log",
            prepare=partial(dies_after, step, run.path),
        )
        assert killed.wait() == -signal.SIGKILL, killed.log.read_text()
    resumed = Command(line(module, "killed", tmp_path), tmp_path / "killed.log", prepare=four_devices)
    assert resumed.wait() == 0, resumed.log.read_text()
    assert [event["step"] for event in run.events("restore")] == [2, 4]
    assert run.json("final.json") == left.json("final.json")
    assert run.losses() == left.losses()
    assert len(run.losses()) == 6
    assert run.json("config.json")["exact"]["source_sha256"] == source.digest(module)


@pytest.fixture(scope="module")
def ended(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of the runs of a module that trained for two steps."""
    root = tmp_path_factory.mktemp("ended")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(EXAMPLES)
        patch.setenv("DATA_DIR", str(tokens))
        patch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
        more = ("train.steps=2", f"observe.eval_path={tokens}", "observe.eval_batches=1")
        assert train(line("of_linen:Model", "ended", root, *more)) == 0
    return root


@pytest.mark.slow
@pytest.mark.usefixtures("training")
def test_a_modules_checkpoints_are_verified_and_its_arrays_exported(
    ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(ended / "runs" / "ended")
    assert main(["checkpoints", "verify", run]) == 0
    assert "right, as the run ended" in capsys.readouterr().out
    out = tmp_path / "exported"
    assert main(["checkpoints", "export", run, "--out", str(out), "--dtype", "float32"]) == 0
    arrays = load_file(out / "model.safetensors")
    assert arrays["Embed_0.embedding"].shape == (257, 16)
    assert '"module": "of_linen:Model"' in (out / "config.json").read_text()
    config = EXAMPLES / "x.toml"
    assert not config.exists()
    extraction = ["extract", "tiny.toml", "--set", f"model.weights=run:{run}@2", "--dir", str(tmp_path)]
    assert main([*extraction, "--stream", str(tmp_path)]) != 0


@pytest.mark.slow
@pytest.mark.usefixtures("training")
def test_a_module_whose_source_or_settings_changed_is_another_run(
    ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("train.steps=2", "model.settings={width=8}")
    assert main(line("of_linen:Model", "ended", ended, *more)) == 2
    assert "model.settings.width was 16, is 8" in capsys.readouterr().err
    for name in ("of_linen.py", "transformer.toml"):
        (tmp_path / name).write_bytes((EXAMPLES / name).read_bytes())
    with (tmp_path / "of_linen.py").open("a") as file:
        file.write("\n# changed between two attempts\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "of_linen")
    assert main(line("of_linen:Model", "ended", ended, "train.steps=2")) == 2
    assert "source_sha256 was " in capsys.readouterr().err


def config_of(module: str, settings: dict[str, Any], *more: str) -> configs.Config:
    given = ", ".join(f"{key} = {value}" for key, value in settings.items())
    return configs.load(
        "transformer.toml",
        [f"model.module={module}", f"model.settings={{{given}}}", "model.vocab_size=31", "train.batch_size=8",
         "data.sequence_length=8", *more],
    )  # fmt: skip


def test_a_record_without_younger_keys_goes_on_and_another_optax_is_a_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(*more: str) -> RunRecord:
        config = config_of("encoder:Model", {}, "train.accumulate=2", *more)
        mesh = SimpleNamespace(shape={"data": 1, "fsdp": 1})
        step: Any = SimpleNamespace(slices=1, mesh=mesh, attention="module", state={"params": params})
        cluster: Any = SimpleNamespace(devices=jax.devices(), agree=lambda compute: compute())
        dataset: Any = SimpleNamespace(manifest=SimpleNamespace(sha256="of tokens"))
        return RunRecord(config, step, dataset, cluster)

    params, store = {"up": jnp.zeros(1)}, FolderStore(tmp_path)
    record().write(store)
    assert not record().settle(store)
    with monkeypatch.context() as patched:
        patched.setattr(records, "version", lambda package: f"another {package}")
        assert record().settle(store)
    older = json.loads(store.read("config.json"))
    del older["exact"]["train"]["accumulate"], older["rounding"]["optax"]
    store.write("config.json", json.dumps(older).encode())
    assert not record().settle(store)
    with pytest.raises(HopelessError, match=r"train\.accumulate was 2, is 4"):
        record("train.accumulate=4").settle(store)
    params["up"] = jnp.zeros(1, jnp.bfloat16)
    with pytest.raises(HopelessError, match=r"moments was None, is float32"):
        record().settle(store)


WRITTEN = """
import jax, jax.numpy as jnp
from flax import nnx

class Good(nnx.Module):
    def __init__(self, width, *, odd=5, vocab_size, rngs):
        self.embed = nnx.Embed(vocab_size, width, rngs=rngs)
        self.out = nnx.Linear(width, vocab_size, rngs=rngs, kernel_init=nnx.with_partitioning(
            nnx.initializers.lecun_normal(), ("model", "fsdp")))
        self.odd = nnx.Param(jnp.ones((odd, odd)))
        self.table = jnp.arange(width, dtype=jnp.float32)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, tokens, segments, positions):
        return self.out(self.dropout(self.embed(tokens) + self.table * self.odd[0, 0]))

class Narrow(Good):
    def __call__(self, tokens, segments, positions):
        return super().__call__(tokens, segments, positions)[..., :-1]

class Stateful(Good):
    def __init__(self, width, *, vocab_size, rngs):
        super().__init__(width, vocab_size=vocab_size, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)

class Counts(Good):
    def __init__(self, width, *, vocab_size, rngs):
        super().__init__(width, vocab_size=vocab_size, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros(()))
    def __call__(self, tokens, segments, positions):
        self.calls[...] += 1
        return super().__call__(tokens, segments, positions)

class Empty(nnx.Module):
    def __init__(self, *, rngs): pass
    def __call__(self, tokens, segments, positions): return tokens

class Fails(Good):
    def __call__(self, tokens, segments, positions):
        return self.embed(tokens).reshape(3)

class OneNumber(Good):
    def loss(self, batch): return jnp.sum(batch["tokens"])

class Narrowed(Good):
    def __init__(self, width, *, vocab_size, rngs):
        super().__init__(width, vocab_size=vocab_size, rngs=rngs)
        self.embed = nnx.Embed(vocab_size, width, param_dtype=jnp.bfloat16, rngs=rngs)

class Whole(Good):
    def __init__(self, width, *, vocab_size, rngs):
        super().__init__(width, vocab_size=vocab_size, rngs=rngs)
        self.order = nnx.Param(jnp.arange(width))

class CallsHost(Good):
    def __call__(self, tokens, segments, positions):
        logits = super().__call__(tokens, segments, positions)
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(logits.shape, logits.dtype), logits)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module in the working directory."""
    name = f"written_{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(WRITTEN)
    (tmp_path / f"{name}_damaged.py").write_text("import jax\nclass Model(:\n")
    (tmp_path / "transformer.toml").write_text((EXAMPLES / "transformer.toml").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(
    ("attribute", "settings", "message"),
    [
        ("Narrow", {"width": 8}, r"must return logits [8, 8, 31 or more], not float32[8, 8, 30]"),
        (
            "Stateful",
            {"width": 8},
            "holds BatchStat (norm.mean and 1 more), which changes beside",
        ),
        ("Counts", {"width": 8}, "its call changes calls, which checkpoints lack"),
        ("Empty", {}, "holds no parameters (nnx.Param)"),
        ("Fails", {"width": 8}, "a call raises TypeError at written"),
        ("OneNumber", {"width": 8}, "loss(batch) must return two numbers, sum and count, not int32[]"),
        ("Whole", {"width": 8}, "its parameter order is int32, which has no gradient\n    fix: create it in"),
        ("CallsHost", {"width": 8}, "its gradient raises ValueError at written"),
        ("Goood", {"width": 8}, "has no class Goood"),
        ("jnp", {}, "has no class jnp"),
    ],
)
def test_a_module_that_cant_be_trained_is_refused(
    attribute: str, settings: dict[str, Any], message: str, written: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        open_module(config_of(f"{written}:{attribute}", settings))
    assert message in str(refused.value)
    assert str(refused.value).startswith("1 problem in config:")


def test_all_settings_that_a_constructor_doesnt_know_or_lacks_are_named(written: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_module(config_of(f"{written}:Good", {"widht": 8, "depth": 2}, "compute.dtype=bfloat16"))
    text = str(refused.value)
    assert text.startswith("4 problems in config:")
    assert (
        "model.settings.widht = 8: the module's constructor doesn't take it\n    fix: did you mean width?"
        in text
    )
    assert "model.settings.depth = 2" in text
    assert "model.settings.width = nothing: required by the constructor" in text
    assert "compute.dtype = bfloat16: the module's constructor takes no dtype" in text


def test_a_module_that_doesnt_import_is_refused_with_its_place(written: str) -> None:
    with pytest.raises(ConfigError, match="its import raises ModuleNotFoundError: No module named 'nowhere'"):
        open_module(config_of("nowhere:Model", {}))
    with pytest.raises(ConfigError, match=r"its import raises SyntaxError.*damaged\.py, line 2"):
        open_module(config_of(f"{written}_damaged:Model", {}))


def test_settings_of_the_decoder_and_names_that_arent_are_refused_together(written: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of("my model", {}, 'compute.remat=["full"]')
    assert 'model.module = "my model": must be PACKAGE.MODULE:CLASS' in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        config_of(f"{written}:Good", {"width": 8}, 'compute.remat=["full"]', "train.init_from=/weights")
    assert str(refused.value).startswith("2 problems in")
    assert "compute.remat = ('full',): is of the decoder" in str(refused.value)
    assert "train.init_from = '/weights': must name a run and one of its steps" in str(refused.value)
    for unread in ("max_logit=30.0", "reduce_dtype=bfloat16"):
        with pytest.raises(ConfigError, match=f"compute.{unread[:9]}.*: is of the decoder"):
            config_of(f"{written}:Good", {"width": 8}, f"compute.{unread}")
    for value in ("2026-11-27", "nan"):
        with pytest.raises(ConfigError, match=r"model\.settings = .*must be texts, finite numbers"):
            config_of(f"{written}:Good", {"width": value})


AXES = {"data": 2, "fsdp": 4}


@pytest.mark.parametrize(
    ("annotated", "shape", "placed", "noted"),
    [
        ((), (8, 12), (None, "fsdp"), ""),
        ((), (12, 8), ("fsdp",), ""),
        ((), (6, 10), (), "fsdp = 4 divides no axis; whole on every device"),
        ((), (8,), (), ""),
        (("fsdp", None), (8, 12), ("fsdp", None), ""),
        (("fsdp",), (8,), ("fsdp",), ""),
        ((None, None), (8, 12), (), ""),
        ((("data", "fsdp"), None), (8, 12), (("data", "fsdp"), None), ""),
        (("fsdp", None), (257, 12), (None, "fsdp"), "4 devices don't divide 257; split along axis 1 instead"),
        (("fsdp", None), (257, 3), (), "4 devices don't divide 257; whole on every device"),
        (("model", "fsdp"), (8, 12), (None, "fsdp"), "the mesh has no axis model"),
        (("embed", "mlp"), (8, 4), ("fsdp",), "the mesh has no axis embed; split along axis 0 instead"),
        (("fsdp", "fsdp"), (8, 12), ("fsdp", None), "fsdp has another of its axes"),
    ],
)  # fmt: skip
def test_a_parameter_is_placed_by_its_annotation_or_else_by_its_size(
    annotated: tuple[Any, ...], shape: tuple[int, ...], placed: tuple[Any, ...], noted: str
) -> None:
    assert partition(PartitionSpec(*annotated), shape, AXES) == (PartitionSpec(*placed), noted)


def test_first_values_and_a_steps_dropout_are_the_same_on_any_mesh(written: str) -> None:
    config = config_of(f"{written}:Good", {"width": 8}, "train.accumulate=2")
    rng = np.random.default_rng(0)
    rows = {"tokens_BxL1": rng.integers(0, 31, (8, 9)), "segments_BxL1": np.sort(rng.integers(0, 2, (8, 9)))}
    params, losses, notes = [], [], []
    for count in (4, 1):
        with cpu_devices(count) as devices:
            step = ModuleStep(config, make_mesh(config.mesh, by_slice(devices)), "cpu")
            first = step.first_params()
            params.append(jax.tree.map(np.asarray, first))
            state = {"params": first, "opt_state": step.first_optimizer_state(first)}
            batch = {name: jax.device_put(x.astype(np.int32), step.by_example) for name, x in rows.items()}
            update, measured = step.compile(), []
            for _ in range(3):  # the learning rate of the first update is 0
                state, metrics = update(state, batch)
                measured.append(float(metrics["loss"]))
            losses.append(measured)
            notes.append(step.placement)
            assert step.too_large(None) is None
            assert step.too_large(10_000) is None
            assert "GB of a device's 1e-06 GB; " in str(step.too_large(1000))
    jax.tree.map(np.testing.assert_array_equal, *params)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert losses[0][0] != losses[0][1], "two steps have the same dropout"
    assert notes[1]["placement"] == ["out.kernel [8, 31]: the mesh has no axis model"]
    assert notes[0]["placement"] == [
        "odd [5, 5]: fsdp = 4 divides no axis; whole on every device",
        "out.kernel [8, 31]: the mesh has no axis model; split along axis 0 instead",
    ]


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_narrow_parameters_have_moments_and_sums_of_gradients_in_float32(written: str, name: str) -> None:
    config = config_of(f"{written}:Narrowed", {"width": 8}, "train.accumulate=4", f"optimizer.name={name}")
    step = ModuleStep(config, make_mesh(config.mesh, [jax.devices()[:1]]), "cpu")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(step.state["params"])} == {"bfloat16", "float32"}
    _, _, gradients = jax.eval_shape(step._gradients, {}, step.state, step.batch)
    sums = jax.tree.leaves((step.state["opt_state"], gradients))
    assert {leaf.dtype.name for leaf in sums if leaf.ndim} == {"float32"}
    after, _ = jax.eval_shape(step._update, {}, step.state, step.batch)
    dtypes, expected = (jax.tree.map(lambda leaf: leaf.dtype, state) for state in (after, step.state))
    assert dtypes == expected


def test_a_module_whose_arrays_no_mesh_divides_is_refused_where_a_device_cant_hold_them(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(f"{written}:Good", {"width": 8, "odd": 999})
    monkeypatch.setattr(module_step, "memory_bytes", lambda _: 4_000_000)
    with cpu_devices(4) as devices, pytest.raises(ConfigError) as refused:
        ModuleStep(config, make_mesh(config.mesh, by_slice(devices)), "cpu")
    text = str(refused.value)
    assert text.startswith("1 problem in config:\n  model.module = ")
    assert "GB are arrays that are whole on every device (the largest: " in text
    assert "odd)\n    fix: use a larger slice; give such arrays an axis that fsdp = 4 divides" in text


def test_products_count_loops_by_their_length_and_experts_by_their_rows() -> None:
    def program(x: Any, w: Any, experts: Any, sizes: Any) -> Any:
        y, _ = jax.lax.scan(lambda y, _: (jax.checkpoint(jnp.tanh)(y @ w), None), x, None, length=5)
        return jax.lax.ragged_dot(y, experts, sizes)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 4), (4, 4), (2, 4, 7))]
    jaxpr = jax.make_jaxpr(program)(*shapes, jax.ShapeDtypeStruct((2,), jnp.int32))
    assert products.flops(jaxpr) == 5 * 2 * 3 * 4 * 4 + 2 * 3 * 4 * 7
    kernel = jax.ShapeDtypeStruct((3, 4, 6), jnp.float32)
    convolved = jax.make_jaxpr(lambda x, k: jax.lax.conv_general_dilated(
        x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")))(
        jax.ShapeDtypeStruct((2, 9, 4), jnp.float32), kernel)  # fmt: skip
    assert products.flops(convolved) == 2 * (2 * 9 * 6) * 3 * 4


def test_a_modules_files_are_those_that_it_imports_from_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "my/__init__.py": "", "my/unused.py": "", "other.py": "", "beside.py": "",
        "my/model.py": "from . import layers\ndef late():\n    from my.inner.deep import x\n",
        "my/layers.py": "import json, numpy, other", "my/inner/__init__.py": "", "my/inner/deep.py": "x = 1",
        "alone.py": "import beside\nfrom my import layers",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    package = ["my/__init__.py", "my/inner/__init__.py", "my/inner/deep.py", "my/layers.py", "my/model.py"]
    assert list(source.files("my.model:Model")) == package
    alone = ["alone.py", "beside.py", "my/__init__.py", "my/layers.py", "other.py"]
    assert list(source.files("alone:Model")) == alone
    assert next(iter(source.files("flax:Module"))) == "flax/__init__.py"
    assert source.files("nowhere:Model") == {}
    (tmp_path / "my/__init__.py").unlink()  # Python needs none
    assert list(source.files("my.model:Model")) == package[1:]
    (tmp_path / "flax").mkdir()  # a folder beside the module isn't preferred to an installed package
    assert next(iter(source.files("flax:Module"))) == "flax/__init__.py"
    before = source.digest("my.model:Model")
    (tmp_path / "my/unused.py").write_text("changed = True")
    assert source.digest("my.model:Model") == before
    (tmp_path / "my/inner/deep.py").write_text("x = 2")
    assert source.digest("my.model:Model") != before


def test_a_module_that_another_finder_finds_is_known_by_its_source_or_refused(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an editable install, whose finder maps a name to a file outside of sys.path."""
    (elsewhere := tmp_path / "elsewhere").mkdir()
    for name in ("edited", "of_another_name"):
        (elsewhere / f"{name}.py").write_text(f"from {written} import Good\n")
    files = {"edited": elsewhere / "edited.py", "renamed": elsewhere / "of_another_name.py"}

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any, target: Any = None) -> Any:
            return importlib.util.spec_from_file_location(name, files[name]) if name in files else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert source.files("edited:Good") == {"edited.py": files["edited"]}
    open_module(config_of("edited:Good", {"width": 8}))
    before = source.digest("edited:Good")
    with files["edited"].open("a") as file:
        file.write("# changed\n")
    assert source.digest("edited:Good") != before
    monkeypatch.setitem(sys.modules, "bare", ModuleType("bare"))
    for name in ("renamed:Good", "sys:exit", "bare:Model"):
        assert source.files(name) == {}
    with pytest.raises(ConfigError, match="its source isn't found, so that a change"):
        open_module(config_of("renamed:Good", {"width": 8}))


def test_a_constructor_may_be_a_function_of_the_settings_alone(written: str) -> None:
    (Path.cwd() / f"{written}_made.py").write_text(
        f"from flax import nnx\nfrom {written} import Good\n"
        "def make(width):\n    return Good(width, vocab_size=31, rngs=nnx.Rngs(7))\n"
    )
    module = open_module(config_of(f"{written}_made:make", {"width": 8}))
    assert module.parameters == 31 * 8 + 8 * 31 + 31 + 25
    assert isinstance(module._construct(), nnx.Module)
    assert ModuleConfig("a:B").settings == {}
