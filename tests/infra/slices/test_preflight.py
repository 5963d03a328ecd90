"""`pulumi preview` says what preflight found of a slice's run, or how to ask it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infra.catalog.book import BOOK
from infra.errors import InfraError, InputError
from infra.slices import nodes, preflight
from tests.infra.recording import BASE, parsed
from tests.limits import HANG_S
from tests.workload.extracting import ARCH, make_stream, save_weights
from workload.extract.estimate import STORAGE_DOLLARS_PER_GIB_MONTH
from workload.preflight.compiler import Compiled, cache_folder, key
from workload.preflight.slices import GIB, slices
from workload.train import config as configs

RUN = "train tiny.toml --set train.steps=20 --set=model.layers=3"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_CACHE", str(tmp_path))
    monkeypatch.setattr(preflight, "TIMEOUT_S", HANG_S)
    preflight.verdict_on.cache_clear()


def keep(temporaries_gib: float, refused: str = "") -> None:
    """Keep an answer where preflight keeps its own, as if it had compiled the step."""
    config = configs.load("tiny.toml", ["train.steps=20", "model.layers=3"])
    compiled = Compiled(
        refused, GIB, int(temporaries_gib * GIB), 0, 0, (), (), "einsum", 1.0, "a compiler", 10**9
    )
    cache_folder().mkdir(parents=True, exist_ok=True)
    path = cache_folder() / f"{key(config, slices('v6e-16'))}.json"
    path.write_text(json.dumps(asdict(compiled)))


def test_a_run_that_nobody_asked_about_is_warned_of_with_the_command() -> None:
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn
    assert output.line.endswith(
        "tpu preflight tiny.toml --slice v6e-16 --set=train.steps=20 --set=model.layers=3"
    )


@pytest.mark.parametrize(
    ("temporaries_gib", "refused", "warn", "text"),
    [
        (10.0, "", False, "fits v6e-16: 11.00 of 31.25 GiB a chip, 35%"),
        (29.5, "", True, "may not fit v6e-16: 30.50 of 31.25 GiB"),
        (33.0, "", True, "does not fit v6e-16: 34.00 of 31.25 GiB a chip, 109%, though it compiles"),
        (0.0, "out of memory", True, "does not fit v6e-16: the compiler refuses the step: out of memory"),
    ],
)
def test_what_was_found_is_said(temporaries_gib: float, refused: str, warn: bool, text: str) -> None:
    keep(temporaries_gib, refused)
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn == warn
    assert text in output.line


def test_another_slice_or_step_has_no_answer_yet() -> None:
    keep(10.0)
    for run, kind in (
        (RUN, "v6e-8"),
        ("train tiny.toml --set model.layers=3 --set model.d_ff=96", "v6e-16"),
    ):
        output = preflight.verdict_on(run, kind)
        assert output is not None
        assert output.line.startswith("no preflight of")
    # What changes nothing of the program keeps the answer.
    same = preflight.verdict_on(f"{RUN} --set checkpoint.keep=9 --set optimizer.warmup_steps=10", "v6e-16")
    assert same is not None
    assert "fits v6e-16" in same.line


def test_what_neither_trains_nor_extracts_is_not_spoken_of() -> None:
    assert preflight.verdict_on("python3 train.py", "v6e-16") is None


def test_an_extractions_size_is_said_with_its_price_and_predicted_time(tmp_path: Path) -> None:
    (tmp_path / "streams.json").write_text('{"tokens": 2000000000, "samples": 5000000}')
    weights = save_weights(tmp_path / "weights", ARCH)
    run = f"extract qwen2.5-0.5b.toml --stream {tmp_path} --set model.weights={weights}"
    output = preflight.verdict_on(run, "v6e-8", 1, "asia-northeast1", hourly=10.0)
    assert output is not None
    assert not output.warn
    size = 2e9 * (ARCH.layers * ARCH.d_model * 2 + 8)
    assert (
        f"stores {size / 1e9:.3g} GB, ${size / 2**30 * 0.023:.2f} a month in STANDARD in asia" in output.line
    )
    hours = size / 1e9 / 3600  # written at 1 GB/s
    assert f"predicted: 0.15 hours of one v6e-8, ${10 * hours:.2f}, shared" in output.line
    fewer = preflight.verdict_on(f"{run} --set extract.positions=last", "v6e-8", 1, "us-east5")
    assert fewer is not None
    assert "hours of one v6e-8, price unknown, shared" in fewer.line
    assert f"stores {5e6 * size / 2e9 / 1e9:.3g} GB" in fewer.line
    assert BOOK["storage.standard"].price("us-east5").dollars == STORAGE_DOLLARS_PER_GIB_MONTH


def test_an_extraction_of_unknown_size_is_warned_of_with_the_command(tmp_path: Path) -> None:
    run = f"extract qwen2.5-0.5b.toml --stream {tmp_path}"
    output = preflight.verdict_on(run, "v6e-8")
    assert output is not None
    assert output.warn
    assert f"(tpu workload {run} --estimate --slice v6e-8): " in output.line
    assert output.line.endswith("can't be read: No such file or directory"), "one line, without another's fix"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--set train.steps=-3", "train.steps = -3: must be at least 1"),
        ("--set train.batch_size=7", "train.batch_size = 7: must be a multiple of the chips, 8"),
        ("--set model=weights", "is of train.init_from, which isn't given"),
        ("--set optimizer.name=adamw --set optimizer.options.b9=1", "optimizer.options"),
    ],
)
def test_a_config_that_the_trainer_refuses_is_refused_before_the_slice_is_billed(
    words: str, problem: str
) -> None:
    with pytest.raises(InfraError, match=f"^`train tiny.toml {words}` on v6e-8: ") as refused:
        preflight.verdict_on(f"train tiny.toml {words}", "v6e-8")
    assert problem in str(refused.value)
    assert "\n    fix: " in str(refused.value)


MIDDLE = "extract.positions = middle: selects no positions"


@pytest.mark.parametrize(
    ("words", "local", "problems"),
    [
        ("--set extract.batch_tokens=5", False, ["extract.batch_tokens = 5: must be at least 128"]),
        (
            "--set extract.positions=middle --set extract.points=resid_pst.3 --point mlp_out", False,
            [MIDDLE, "resid_pst.3: names no point of the model", "--point = mlp_out: requires --format"],
        ),
        ("--set extract.positions=middle --set extract.points=mlp_out.0", True, [MIDDLE]),
    ],
)  # fmt: skip
def test_values_that_no_extraction_takes_are_refused_though_hosts_alone_have_the_weights(
    words: str, local: bool, problems: list[str], tmp_path: Path
) -> None:
    streams, weights = "gs://my-project-checkpoints/streams", "gs://my-project-checkpoints/data/Q"
    if local:
        streams, weights = str(tmp_path), str(save_weights(tmp_path / "weights", ARCH))
        (tmp_path / "streams.json").write_text('{"tokens": 98, "samples": 3}')
        (tmp_path / "stream_003.safetensors").write_bytes(make_stream([5, 60, 33]))
    with pytest.raises(InputError) as refused:
        preflight.verdict_on(
            f"extract qwen2.5-0.5b.toml --stream {streams} --set model.weights={weights} {words}", "v6e-8"
        )
    assert [problem for problem in problems if problem not in str(refused.value)] == []


@pytest.mark.parametrize(
    "words",
    [
        "--set model=weights --set train.init_from=gs://my-project-checkpoints/data/weights",
        "--set model=weights --set train.init_from=weights",  # on the hosts' disk
        "--set model.vocab_size=0",  # of the tokens
    ],
)
def test_what_hosts_alone_know_is_no_reason_to_refuse_a_run(words: str) -> None:
    output = preflight.verdict_on(f"train tiny.toml {words}", "v6e-8")
    assert output is not None
    assert output.line.startswith("no preflight of")


def test_a_folder_of_code_that_doesnt_exist_is_refused_unless_it_is_published() -> None:
    node = replace(nodes.nodes(parsed(BASE))[0], run="train mine.toml")
    with pytest.raises(
        InfraError, match=r'^tpu:code = "nosuchdir": must be a folder of .*\n    fix: create it'
    ):
        preflight.of([replace(node, bundle=None)], "nosuchdir")
    assert not preflight.of([], "nosuchdir"), "of other layers"
    assert not preflight.of([replace(node, bundle="ab" * 32)], "nosuchdir"), "hosts have it"


def test_an_extraction_from_a_bucket_is_one_short_line_with_a_command_that_needs_none() -> None:
    run = "extract qwen2.5-0.5b.toml --name qwen --set extract.points=resid_post.8,resid_post.12"
    run += " --stream gs://my-project-checkpoints/streams"
    output = preflight.verdict_on(f"{run} --set model.weights=gs://my-project-checkpoints/data/Q", "v6e-8")
    assert output is not None
    assert output.warn
    assert output.line == (
        "size and price of the output of `extract qwen2.5-0.5b.toml --name qwen …` aren't known from here;"
        " next: tpu workload extract CONFIG … --set model.weights=FOLDER --stream FOLDER --estimate"
    )


def test_a_config_that_cant_be_read_is_named() -> None:
    output = preflight.verdict_on("train nowhere.toml", "v6e-16")
    assert output is not None
    assert output.warn
    assert "no such file or packaged config" in output.line


def test_a_config_of_the_users_code_is_found_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.toml").write_text('base = "tiny.toml"\n')
    output = preflight.verdict_on("train mine.toml", "v6e-16", folder=tmp_path / "training")
    assert output is not None
    assert output.line.endswith("run cd training && tpu preflight mine.toml --slice v6e-16")


def test_an_answer_that_does_not_come_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "TIMEOUT_S", 0.01)
    output = preflight.verdict_on(RUN, "v6e-16")
    assert output is not None
    assert output.warn
    assert output.line.startswith(f"`{RUN}` isn't checked: no answer within 0.01 s; run tpu preflight ")
