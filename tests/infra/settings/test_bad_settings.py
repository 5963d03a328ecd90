"""Every way to be wrong that we know of, and the words in which it is said."""

from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.engine.registry import layers
from infra.engine.settings import from_file, parse
from infra.errors import Problem, SettingsError
from infra.settings.sources import as_pulumi_hands_it_over
from tests.infra.recording import BASE, Recording, execute, parsed

CASES = yaml.safe_load((Path(__file__).parent / "bad_settings.yaml").read_text())


def problems_of(changes: dict[str, Any], environment: str = "dev") -> list[str]:
    values = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    with pytest.raises(SettingsError) as caught:
        parse(environment, as_pulumi_hands_it_over(values, "Pulumi.dev.yaml"), "Pulumi.dev.yaml")
    count = len(caught.value.problems)
    head = f"{count} problem{'s' if count > 1 else ''} in Pulumi.dev.yaml:"
    assert str(caught.value).splitlines()[0] == head
    return [str(problem).replace("\n    fix: ", " | ") for problem in caught.value.problems]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_it_is_refused_in_these_words(case: dict[str, Any]) -> None:
    assert problems_of(case["change"], case.get("environment", "dev")) == case["problems"]


@pytest.mark.parametrize("environment", ["Dev", "my.env", "d" * 64])
def test_an_environment_whose_name_is_no_label_is_refused(environment: str) -> None:
    with pytest.raises(SettingsError, match=f'1 problem in f:\n  environment = "{environment}": '):
        parsed(BASE, environment)


@pytest.mark.parametrize("layer", ["storage", "tpu"])
def test_a_budget_refuses_in_the_program_too(layer: str) -> None:
    recording = Recording(preview=False, stacks={})
    with pytest.raises(pulumi.RunError, match=r"\$22.45 an hour, fleet:dollarsPerHour allows \$5"):
        execute(layer, {**BASE, "fleet:dollarsPerHour": 5}, recording)
    assert (recording.resources, recording.calls) == ([], [])


def test_there_are_many_cases_and_each_stands_once() -> None:
    names = [case["case"] for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 60


def test_problems_of_all_layers_are_reported_at_once() -> None:
    everything = {key: value for case in CASES for key, value in case["change"].items()}
    paths = {problem.split(":")[0] for problem in problems_of(everything)}
    assert {"gcp", *(layer.name for layer in layers())} <= paths


@pytest.mark.parametrize("layer", [layer.name for layer in layers()])
def test_wrong_settings_declare_nothing_and_ask_nothing(layer: str) -> None:
    recording = Recording(preview=False, stacks={})
    with pytest.raises(pulumi.RunError) as caught:
        execute(layer, {**BASE, "network:mtu": 9000}, recording)
    assert str(caught.value) == (
        "1 problem in Pulumi.dev.yaml:\n"
        "  network:mtu = 9000: must be 1300 to 8896 bytes\n    fix: the default is 8896"
    )
    assert (recording.resources, recording.calls) == ([], [])


def judged(values: dict[str, Any]) -> tuple[Problem, ...]:
    """The problems of settings that may be right; anything but a SettingsError fails the test."""
    try:
        parsed(values)
    except SettingsError as error:
        return error.problems
    return ()


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=6,
)


@given(
    key=st.sampled_from([*BASE, "network:subnetRanges", "network:existingSubnets", "gcp:x"]), value=_anything
)
def test_no_value_whatever_leads_to_a_traceback(key: str, value: Any) -> None:
    assert all(problem.fix and problem.rule for problem in judged({**BASE, key: value}))


@given(field=st.sampled_from([*BASE["tpu:slices"][0], "count", "topology", "labels"]), value=_anything)
def test_no_value_in_a_slice_leads_to_a_traceback(field: str, value: Any) -> None:
    problems = judged({**BASE, "tpu:slices": [{**BASE["tpu:slices"][0], field: value}]})
    assert all(problem.path.startswith(("tpu:", "network:", "storage:", "data:")) for problem in problems)


def test_a_key_without_a_value_hides_no_other_problem(tmp_path: Path) -> None:
    text = "config:\n  gcp:project:\n  storage:location: {secure: abc}\n  network:mtu: nine\n"
    (tmp_path / "Pulumi.dev.yaml").write_text(text)
    with pytest.raises(SettingsError) as refusal:
        from_file("dev", tmp_path)
    paths = [problem.path for problem in refusal.value.problems]
    assert {"gcp:project", "storage:location", "network:mtu"} <= set(paths)
    assert paths.count("gcp:project") == paths.count("storage:location") == 1
    for output in (
        "gcp:project = nothing: a key has a value\n    fix: write one, or remove the key",
        "storage:location = a secret: no setting is a secret\n    fix: write it in plain text",
    ):
        assert output in str(refusal.value)
