"""Scenarios: the project's own are valid, and a broken rule is named with its file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal.errors import ScenarioError
from rehearsal.scenario import steps
from rehearsal.scenario.scenario import SCENARIOS, find, load, name_of, own
from rehearsal.scenario.step import STEPS, Step
from rehearsal.world.checkout import PROJECTS

HEAD = '''"""A scenario."""

from rehearsal.cloud.core.world import Lags
from rehearsal.scenario import steps as step
from rehearsal.scenario.scenario import Scenario

'''
LINES = HEAD.count("\n")


def written(folder: Path, text: str) -> Path:
    path = folder / "my_scenario.py"
    path.write_text(f"{HEAD}{text}\n")
    return path


@pytest.mark.parametrize("path", own(), ids=name_of)
def test_own_scenarios_are_good(path: Path) -> None:
    scenario = load(path)
    assert scenario.title
    layers = {step.arguments["layer"] for step in scenario.steps if "layer" in step.arguments}
    assert layers <= set(PROJECTS)
    assert {step.kind for step in scenario.steps} <= set(steps.__all__)


def test_every_step_can_be_used() -> None:
    assert set(steps.__all__) == set(STEPS)


def test_the_default_scenario_has_every_promised_step() -> None:
    planned = load(find("default")).steps
    assert [step.arguments["how"] for step in planned if step.kind == "kill"] == [
        "notice",
        "power-loss",
    ]
    up = {layer for step in planned if step.kind == "up" for layer in step.arguments["layers"]}
    assert up == {"storage", "network", "data", "tpu"}
    assert any(step.kind == "same" for step in planned)
    assert any(step.kind == "destroy" and step.arguments["refused"] for step in planned)


def test_kills_strikes_twenty_times() -> None:
    kills = [step for step in load(find("kills")).steps if step.kind == "kills"]
    assert [kill.arguments["times"] for kill in kills] == [20]


def test_locks_of_all_bundles_are_known_before(tmp_path: Path) -> None:
    listed = 'step.publish("bare"), step.guide("docs/x.md", ("A",)), step.publish("bare")'
    text = f"SCENARIO = Scenario(steps=({listed}))"
    assert load(written(tmp_path, text)).locks == ("bare", "cpu")


@pytest.mark.parametrize(
    ("step", "title", "account"),
    [
        (steps.up("storage"), "pulumi up: storage", "platform-engineer"),
        (steps.up("tpu", refused="no capacity").by("ci"), "pulumi up: tpu   (must fail)", "ci"),
        (steps.command("\n  one\n  two\n", fails=True), "$ one …   (must fail)", "ml-engineer"),
        (steps.destroy("data"), "pulumi destroy: data", "platform-engineer"),
        (steps.remember("a/", "b/"), "note the objects in the bucket: a/, b/", None),
        (steps.settings({"a": 1, "b": 2}), "change settings: a, b", None),
        (steps.clock(3), "clock at 3 virtual seconds a second", None),
    ],
)  # fmt: skip
def test_a_step_has_a_title_and_an_account(step: Step, title: str, account: str | None) -> None:
    assert (step.title, step.account) == (title, account)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SCENARIO = Scenario(steps=())", "steps: at least one is required"),
        ("SCENARIO = Scenario(clock=0, steps=(step.survived(),))", "clock: 0 is not positive"),
        ("SCENARIO = Scenario(lags=Lags(-1), steps=(step.survived(),))", "lags.grant_s: -1 is negative"),
        ("SCENARIO = Scenario(clok=0, steps=(step.survived(),))", "unexpected keyword argument 'clok'"),
        ("step.surviv()", "has no attribute 'surviv'"),
        ("step.up()", "layers: none is named"),
        ("step.destroy()", "missing a required argument: 'layer'"),
        ("step.up('tpus')", "layer: 'tpus' is none of storage"),
        ("step.up('tpu', refuse='x')", "unexpected keyword argument 'refuse'"),
        ("step.up('tpu', refused='(')", "missing ), unterminated subpattern"),
        ("step.reboot('n', '(')", "missing ), unterminated subpattern"),
        ("step.request('topics.list')", "method: 'topics.list' isn't API.VERSION"),
        ("step.clock(-1)", "rate: -1 is not positive"),
        ("step.kill('n', 'crash', 'r', (9, 2))", "between: 9 is greater than 2"),
        ("step.kills('n', 'r', 9, 4)", "times: 9 kills don't fit into 4 steps"),
        ("step.submit('/a')", "folder: '/a' isn't NAME/"),
        ("step.fired({'a': '('}, 's')", "missing ), unterminated subpattern"),
        ("step.fault('f', {'status': 503}, {'metod': 'x'})", "match: unknown ['metod']"),
        ("step.fault('f', {'status': 200})", "what.status: 200"),
        ("step.quota('none', 'us-east5', 1)", "none"),
        ("title: [", "'[' was never closed"),
    ],
)
def test_a_broken_rule_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, text))
    assert message in str(refused.value)
    assert f"my_scenario.py:{LINES + 1}: " in str(refused.value)


def test_a_module_without_a_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"needs a docstring and SCENARIO"):
        load(written(tmp_path, ""))


def test_the_command_lines_seed_wins(tmp_path: Path) -> None:
    path = written(tmp_path, "SCENARIO = Scenario(seed=3, steps=(step.survived(),))")
    assert (load(path).seed, load(path, 9).seed) == (3, 9)


def test_without_a_seed_each_time_another(tmp_path: Path) -> None:
    path = written(tmp_path, "SCENARIO = Scenario(steps=(step.survived(),))")
    assert len({load(path).seed for _ in range(8)}) > 1


def test_names_and_files(tmp_path: Path) -> None:
    assert find("kills") == SCENARIOS / "kills.py"
    assert find("pipeline-faults") == SCENARIOS / "pipeline_faults.py"
    with pytest.raises(ScenarioError, match="did you mean kills"):
        find("kils")
    with pytest.raises(ScenarioError, match="no file"):
        find(str(tmp_path / "none.py"))
