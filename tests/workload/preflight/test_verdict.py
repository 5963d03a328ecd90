"""Preflight's verdict on a compiled step: fit, time, price, risk, and the words for them."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from workload.__main__ import main
from workload.model import kernels
from workload.model.generation import Generation
from workload.model.transformers_export import config_json
from workload.preflight import command, compiler, report, roofline, search
from workload.preflight.compiler import Buffer, Compiled
from workload.preflight.schedule import Collective
from workload.preflight.slices import CHIP, GIB, Slices, price, slices
from workload.preflight.verdict import Verdict, judge
from workload.runs.store import open_store
from workload.train import config as configs
from workload.train.config import Config

V6E_256 = slices("v6e-256")


def llama(*overrides: str) -> Config:
    return configs.load("llama-3.1-8b-v6e-256.toml", overrides)


def compiled(
    temporaries_gib: float = 14.0, collectives: tuple[Collective, ...] = (), refused: str = ""
) -> Compiled:
    largest = (Buffer(8 * GIB, "bf16[32,4,8192,4096]"),)
    return Compiled(
        refused,
        GIB,
        int(temporaries_gib * GIB),
        0,
        0,
        largest,
        collectives,
        "splash",
        260.0,
        "jax 0, libtpu 0",
        12 * llama().decoder.parameters(),
    )


def judged(config: Config, step: Compiled, wanted: Slices = V6E_256) -> Verdict:
    return judge(config, wanted, price("us-east5"), step, recovery_s=600.0)


@pytest.mark.parametrize(
    ("temporaries_gib", "fits"),
    [(10.0, "yes"), (28.6, "yes"), (28.8, "uncertain"), (30.3, "no"), (40.0, "no")],
)
def test_that_it_compiled_is_no_proof(temporaries_gib: float, fits: str) -> None:
    assert judged(llama(), compiled(temporaries_gib)).fits == fits


def test_a_refusal_is_told_in_the_compilers_words() -> None:
    verdict = judged(
        llama(), compiled(refused="total memory required (41.01G) exceeds available HBM (31.25G)")
    )
    assert verdict.fits == "no"
    assert verdict.prediction is None
    output = report.text(verdict, "mine.toml")
    assert "mine.toml on v6e-256: DOES NOT FIT" in output
    assert "41.01G" in output
    assert "time of a step" not in output


def test_published_runs_are_hit_within_the_error_that_is_told() -> None:
    """Ten runs of MaxText; golden: they change with `published.toml` and with the roofline's arithmetic."""
    method = roofline.method()
    assert len(method.anchors) == 10
    assert method.shares == pytest.approx((0.495, 0.525, 0.578), abs=2e-3)
    parameters = llama().model.parameters()
    near = method.for_size(parameters)
    assert {anchor.model for anchor in near.anchors} == {"Llama-3.1-8B"}
    assert near.shares == pytest.approx((0.495, 0.504, 0.510), abs=2e-3)
    assert method.error(parameters) == pytest.approx(0.044, abs=2e-3), "Mistral 7B's"
    assert method.error(70 * 10**9) == pytest.approx(0.073, abs=2e-3), "70 B on a v6e-64"
    assert len(method.for_size(10**9).anchors) == 10, "nobody measured one of that size"


def test_held_out_runs_are_missed_by_what_the_table_tells() -> None:
    """Golden: they change with `published.toml` and with the roofline's arithmetic."""
    errors = {(run.trainer, run.model, run.length): method_error(run) for run in roofline.method().held_out}
    assert errors["MaxText", "Qwen3-8B", 8192] == pytest.approx(0.005, abs=1e-3)
    assert errors["MaxText", "Llama-2-70B", 4096] == pytest.approx(0.084, abs=1e-3)
    assert errors["flax.nnx, best", "Qwen3-8B", 2048] == pytest.approx(-0.176, abs=1e-3)
    assert errors["torchprime", "Llama-3.1-8B", 8192] == pytest.approx(0.427, abs=1e-3)


def method_error(run: roofline.Anchor) -> float:
    return roofline.method().error_on(run)


def test_llama_8b_has_two_forecasts() -> None:
    """As MaxText would run it: its runs average 7,165 tokens/s/chip. As other trainers ran: 0.46 to 0.61."""
    prediction = judged(llama(), compiled()).prediction
    assert prediction is not None
    low, likely, high = prediction.as_maxtext
    assert likely == pytest.approx(7165, rel=0.01)
    assert low < 7032 < 7247 < high
    slow, _, fast = prediction.tokens_per_s_per_chip
    assert (slow, fast) == pytest.approx((14205 * 0.458, 14205 * 0.612), rel=5e-3)


def test_waits_beyond_those_of_other_trainers_come_on_top() -> None:
    """Their shares are of whole steps, of which 4 % are waits."""
    few = Collective("all-gather", "a", 10**9, 256, False, 40, waits_s=0.001)
    many = replace(few, waits_s=0.01)
    covered, within, waiting = (
        judged(llama(), compiled(collectives=collectives)) for collectives in ((), (few,), (many,))
    )
    assert covered.prediction is not None
    assert within.prediction is not None
    assert waiting.prediction is not None
    assert within.prediction.bounds.exposed == pytest.approx(0.04)
    assert within.prediction.step_s == covered.prediction.step_s
    expected = [step_s + max(0, 0.4 - 0.04 * step_s) for step_s in covered.prediction.step_s]
    assert waiting.prediction.step_s == pytest.approx(expected)
    assert waiting.prediction.as_maxtext == covered.prediction.as_maxtext
    output = report.text(waiting, "mine.toml")
    assert "waiting for 1 of 1 collectives, at the measured 100 GB/s" in output
    assert "40 GB all-gather in a slice" in output


def test_memory_traffic_holds_the_loss_and_the_optimizer() -> None:
    """Of 8 B at 4 x 8192 tokens a chip, 193 GB are the loss's, in 16 chunks."""
    base = llama("optimizer.learning_rate=1e-4")
    larger = replace(base, compute=replace(base.compute, loss_chunk_tokens=4096))
    saved = roofline.hbm_bytes(base, V6E_256, 1, 0) - roofline.hbm_bytes(larger, V6E_256, 1, 0)
    matrix = base.model.vocab_size * base.model.d_model
    assert saved == pytest.approx(8 * 12 * matrix)
    whole = 16 * 12 * matrix + 32768 * base.model.vocab_size * 22
    assert whole == pytest.approx(193e9, rel=0.01)


def test_the_optimizers_traffic_is_that_of_its_state() -> None:
    """A state of 8 bytes a parameter is read and written in place of one of 12."""
    base, parameters = llama(), llama().decoder.parameters()
    twelve, eight = (roofline.hbm_bytes(base, V6E_256, 1, size * parameters) for size in (12, 8))
    assert twelve - eight == pytest.approx(2 * 4 * parameters / 256)


@pytest.mark.parametrize(
    ("overrides", "bytes_a_parameter"),
    [
        ((), 12),
        (("optimizer.moment_dtype=bfloat16",), 10),
        (("optimizer.name=lion",), 8),
        (("optimizer.name=adafactor",), 4),
        (("optimizer.name=adan",), 20),
    ],
)
def test_a_state_has_the_size_of_its_optimizers_arrays(
    overrides: tuple[str, ...], bytes_a_parameter: float
) -> None:
    config = llama(*overrides)
    state, gradients = search.held_bytes(config)
    assert state == pytest.approx(bytes_a_parameter * config.decoder.parameters(), rel=0.01)
    assert gradients == 4 * config.decoder.parameters()


def test_a_run_of_adapters_holds_their_state_beside_the_frozen_model() -> None:
    config = llama("lora.rank=8", "train.init_from=base")
    state, others = search.held_bytes(config)
    assert state < 0.05 * others
    assert others == pytest.approx(2 * config.decoder.parameters(), rel=0.02)


def test_hardware_flops_are_the_models_and_what_remat_adds() -> None:
    arch = llama().model
    none = roofline.step_flops(arch, 8192, "einsum", ("none",))
    full = roofline.step_flops(arch, 8192, "einsum", ("full",))
    forward = roofline.forward_flops(arch, 8192, "einsum")
    assert none == pytest.approx(3 * sum(forward.values()))
    spared = forward["down"] + forward["unembedding"]
    assert full - none == pytest.approx(sum(forward.values()) - spared)
    stored = roofline.step_flops(arch, 8192, "einsum", ("save:attn_z", "save:query"))
    assert full - stored == pytest.approx(forward["attention"] + forward["query"])
    # Splash at 8192 does 10 of 16 blocks of 2048; its backward pass computes scores again: five products.
    splash = roofline.forward_flops(arch, 8192, "splash")
    assert splash["attention"] / forward["attention"] == pytest.approx(10 / 16)
    step = roofline.step_flops(arch, 8192, "splash", ("none",))
    assert step == pytest.approx(3 * sum(splash.values()) + 0.5 * splash["attention"])


def test_each_exchange_is_held_against_its_own_network() -> None:
    config = llama()
    two = slices("v6e-256", 2)
    collectives = (
        Collective("all-gather", "a", 10**9, 256, False, 30),
        Collective("all-reduce", "b", 10**9, 2, True, 4),
    )
    limits = roofline.bounds(
        replace(config, train=replace(config.train, batch_size=2048)), two, "splash", collectives, 0
    )
    assert limits.ici == pytest.approx(30e9 * 255 / 256 / 400e9)
    # Two slices: half of each array and back again; four chips share a host's cards.
    assert limits.dcn == pytest.approx(4e9 / 2 * 2 * 4 / 100e9)
    assert limits.binding == "compute"


def test_the_price_of_a_run_follows_from_its_speed() -> None:
    verdict = judged(llama("train.steps=1000"), compiled())
    assert verdict.prediction is not None
    likely = verdict.prediction.tokens_per_s_per_chip[1]
    on_demand = verdict.money["on_demand"]
    assert on_demand.an_hour == pytest.approx(256 * 2.70)
    assert on_demand.a_billion_tokens == pytest.approx(2.70 / 3600 / likely * 1e9)
    tokens = 1000 * 1024 * 8192
    assert on_demand.a_run == pytest.approx(on_demand.a_billion_tokens * tokens / 1e9)
    spot = verdict.money["spot"]
    assert spot.a_billion_tokens == pytest.approx(1.4033 / 3600 / likely * 1e9 / verdict.risk.goodput)


def test_one_machine_cant_promise_a_save_within_the_notice() -> None:
    """96 GB from the single host of a v6e-8, 1.5 GB from each of 64."""
    alone = judged(llama("train.batch_size=16"), compiled(), slices("v6e-8")).risk
    many = judged(llama(), compiled()).risk
    assert alone.save_s == pytest.approx((96.4, 20.9), abs=0.1)
    halved = replace(compiled(), state_bytes=compiled().state_bytes // 2)
    small = judged(llama("train.batch_size=16"), halved, slices("v6e-8"))
    assert small.risk.save_s[0] == pytest.approx(96.4 / 2, abs=0.1)
    assert (alone.notice, many.notice) == ("perhaps", "yes")
    assert many.save_s[0] == pytest.approx(1.5, abs=0.1)
    assert alone.goodput < many.goodput < 1
    short = judged(llama("checkpoint.notice_s=1"), compiled())
    assert short.risk.notice == "perhaps"
    assert "may not fit into the 1 s notice" in report.text(short, "mine.toml")
    rare = judged(llama("checkpoint.preemption_every_h=2400"), compiled()).risk
    assert rare.goodput > many.goodput


def test_an_interval_that_the_config_gives_is_the_one_that_counts() -> None:
    verdict = judged(llama("checkpoint.every_steps=7"), compiled())
    assert verdict.prediction
    assert verdict.risk.interval_s == pytest.approx(7 * verdict.prediction.step_s[1])
    assert "s: checkpoint.every_steps = 7" in report.text(verdict, "mine.toml")


def test_a_model_comes_with_the_weights_that_a_run_begins_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a fine-tuning config would be answered for the default model, of two layers."""
    arch = llama().model
    (tmp_path / "config.json").write_text(json.dumps(config_json(arch, "bfloat16", Generation(longest=8192))))
    monkeypatch.setattr(command, "lookup", lambda config, _: seen.append(config))
    seen: list[Config] = []
    config_file = tmp_path / "mine.toml"
    config_file.write_text(f'[train]\nbatch_size = 4\ninit_from = "{tmp_path}"\n')
    line = ["preflight", str(config_file), "--slice", "v6e-4", "--cached"]
    assert main(line) == 4
    assert seen[0].model == replace(arch, head_dim=arch.K)
    assert main([*line, "--set", "model.layers=3"]) == 2
    assert "model.layers = 3: must be 32, as in" in capsys.readouterr().err
    assert main([*line, "--set", "model.vocab_size=7"]) == 2
    assert "model.vocab_size = 7: must be 128256, as in" in capsys.readouterr().err
    (tmp_path / "config.json").unlink()
    assert main(line) == 4, "the hosts may have it"
    assert main(line[:-1]) == 2
    assert "config.json: can't be read" in capsys.readouterr().err


def test_tokens_that_are_not_in_the_bucket_are_found_before_the_compilation(
    storage_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_url)
    monkeypatch.setattr(command, "compile_step", lambda *_, **__: compiled())
    url = f"gs://bucket/{tmp_path.name}"
    open_store(f"{url}/data").write("manifest.json", b"{}")
    line = ["preflight", "llama-3.1-8b-v6e-256.toml", "--slice", "v6e-256", f"--set=data.path={url}/data"]
    assert main([*line, f"--set=observe.eval_path={url}/held-out"]) == 2
    error = capsys.readouterr().err
    assert f"observe.eval_path = {url}/held-out: holds no manifest.json\n    fix: upload it: tpu" in error
    assert "data.path" not in error
    assert main([*line, f"--set=observe.eval_path={url}/data"]) == 0
    assert main([*line, "--set=observe.eval_path=held-out"]) == 0, "the hosts' disk may have it"


def test_an_answer_that_cannot_be_kept_is_given_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPU_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(compiler, "_compile", lambda *_: compiled())
    assert compiler.compile_step(llama(), V6E_256) == compiled()
    assert "can't be written: Not a directory" in capsys.readouterr().err


def test_the_report_names_what_binds_and_what_it_is_worth() -> None:
    output = report.text(judged(llama(), compiled()), "llama-3.1-8b-v6e-256.toml")
    for words in (
        "llama-3.1-8b-v6e-256.toml on v6e-256: FITS",
        "15.00 of 31.25 GiB a chip, 48%",
        "8.00 GiB  bf16[32,4,8192,4096]",
        "against 918 TFLOP/s (binds)",
        "nothing here was measured on a TPU",
        "as MaxText would: its published runs of Llama-3.1-8B reach",
        "held out one by one, runs are missed by 4% at most",
        "this program: 46% to 61% of its roofline, as 7 runs of other trainers",
        "as read 2026-08",
        "fits into the 30 s notice",
    ):
        assert words in output, output


def test_the_answer_for_programs_holds_everything() -> None:
    content = json.loads(json.dumps(judged(llama(), compiled()).as_json()))
    assert content["fits"] == "yes"
    assert content["chips"] == 256
    assert content["prediction"]["bounds"]["binding"] == "compute"
    assert content["method"]["error"] > 0
    assert content["config"]["train"]["batch_size"] == 1024


@pytest.mark.parametrize(
    ("name", "bounds"),
    [("v6e-1", (1, 1, 1)), ("v6e-4", (2, 2, 1)), ("v6e-8", (2, 4, 1)), ("v6e-16", (2, 2, 1))],
)
def test_the_compiler_is_told_which_chips_are_one_machine(name: str, bounds: tuple[int, int, int]) -> None:
    assert slices(name).host_bounds == bounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--slice", "v5e-16"], "--slice = v5e-16: must be a type of v6e slice"),
        (["--slice", "v6e-256", "--slices", "0"], "--slices = 0: must be at least 1"),
        (
            ["--slice", "v6e-256", "--region", "mars"],
            "--region = mars: must be a region whose price is known",
        ),
        (["--slice", "v6e-256", "--set", "train.batch_size=1000"], "--set train.batch_size=1024"),
        (["--slice", "v6e-256", "--set", "mesh.data=3"], "mesh.data = 3: must divide the chips of a slice"),
        (["--slice", "v6e-8", "--slices", "128", "--set", "mesh.data=16"], "the chips of a slice, 8"),
        (
            ["--slice", "v6e-256", "--set=compute.attention=splash", "--set=data.sequence_length=1000"],
            "splash: needs a data.sequence_length that 128 divides, not 1000",
        ),
        (
            ["--slice", "v6e-256", "--set", "model.vocab_size=0"],
            "must be set, since preflight reads no tokens",
        ),
        (["--slice", "v6e-256", "--set", "compute.examples_at_once=3"], "must divide the 4 examples"),
        (["--slice", "v6e-256", "--set", "model.layer=3"], "did you mean model.layers?"),
        (["--slice", "v6e-256", "--recovery-min", "-5"], "--recovery-min = -5: must be 0 minutes or more"),
        (["--slice", "v6e-256", "--plot", "x.png"], "--plot = x.png: requires --search"),
        (["--slice", "v6e-256", "--search", "--plot", "no/x.png"], "must be in an existing folder"),
    ],
)
def test_bad_input_is_refused_before_anything_compiles(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it compiled")

    monkeypatch.setattr(compiler, "_compile", never)
    assert main(["preflight", "llama-3.1-8b-v6e-256.toml", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_real_step_is_compiled_for_a_slice_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XLA's TPU compiler, here, for a v6e-4: 15 s; the second look takes no compiler."""
    monkeypatch.setenv("TPU_CACHE", str(tmp_path))
    line = ["tiny.toml", "--slice", "v6e-4", "--json", "--set", "data.sequence_length=128"]
    overrides = ["--set", "model.d_model=128", "--set", "model.heads=1", "--set", "compute.dtype=bfloat16"]
    assert command.main([*line, *overrides]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["compiled"]["attention"] == kernels.choose("auto", "tpu", 128)[0]
    assert 0 < first["compiled"]["arguments_bytes"] < 0.01 * CHIP.hbm_bytes
    assert {collective["kind"] for collective in first["compiled"]["collectives"]} >= {"all-gather"}
    assert first["compiled"]["compile_s"] > 0.5

    # What else this process compiles goes into JAX's own cache, as if nothing had been.
    stored = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    before = {path.name for path in stored.iterdir()}
    for _ in range(5):  # another process may hold the cache's lock
        jax.jit(lambda x: x * time.time())(1.0)  # a constant that no program had
    assert {path.name for path in stored.iterdir()} - before

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("it compiled again")

    monkeypatch.setattr(compiler, "_compile", never)
    assert command.main([*line, *overrides, "--cached"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert command.main([*line, *overrides, "--cached", "--set", "model.layers=3"]) == 4
