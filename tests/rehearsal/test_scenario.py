"""Scenario files: the project's own are good, and every broken rule is named with its key path."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal.errors import ScenarioError
from rehearsal.scenario import steps
from rehearsal.scenario.owner_steps import Request
from rehearsal.scenario.scenario import SCENARIOS, find, load
from rehearsal.world.program import PROJECTS

HEAD = "title: a scenario\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_own_scenarios_are_good(path: Path) -> None:
    scenario = load(path)
    assert scenario.header.title
    assert scenario.steps


def test_the_default_story_tells_what_it_promises() -> None:
    scenario = load(find("default"))
    kills = [step for step in scenario.steps if isinstance(step, steps.Kill)]
    assert [kill.how for kill in kills] == ["notice", "power-loss"]
    assert {step.layer for step in scenario.steps if isinstance(step, steps.Up)} == {
        "storage",
        "network",
        "data",
        "tpu",
    }
    assert any(isinstance(step, steps.Same) for step in scenario.steps)
    assert any(isinstance(step, steps.Destroy) and step.refused for step in scenario.steps)


def test_kills_strikes_twenty_times() -> None:
    kills = [step for step in load(find("kills")).steps if isinstance(step, steps.Kills)]
    assert [kill.times for kill in kills] == [20]


def test_every_form_of_a_step(tmp_path: Path) -> None:
    text = """
steps:
- up: storage
- up: {layer: tpu, refused: no capacity}
- survived
- settings: {tpu:slices: [], set: 3}
- same: [one, other]
- kill: {node: n, how: power-loss, run: r, between: [1, 2]}
- clock: 3
- request: {method: pubsub.v1.projects.topics.list, arguments: {project: p}}
"""
    assert load(written(tmp_path, HEAD + text)).steps == (
        steps.Up("storage"),
        steps.Up("tpu", "no capacity"),
        steps.Survived(),
        steps.Settings({"tpu:slices": [], "set": 3}),
        steps.Same(("one", "other")),
        steps.Kill("n", "power-loss", "r", (1, 2)),
        steps.Clock(3.0),
        Request("pubsub.v1.projects.topics.list", {"project": "p"}),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: [survived]\n", "scenario.title: missing"),
        (HEAD, "scenario.steps: expected a list of at least one step"),
        (HEAD + "steps: []\n", "scenario.steps: expected a list of at least one step"),
        (HEAD + "clok: 3\nsteps: [survived]\n", "scenario.clok: unknown key; did you mean clock?"),
        (HEAD + "clock: 0\nsteps: [survived]\n", "scenario: clock: 0 is not positive"),
        (
            HEAD + "grant_lag_s: -1\nsteps: [survived]\n",
            "scenario: grant_lag_s: -1 is negative",
        ),
        (HEAD + "clock: fast\nsteps: [survived]\n", "scenario.clock: expected a number, got 'fast'"),
        (HEAD + "seed: 1.5\nsteps: [survived]\n", "scenario.seed: expected a whole number, got 1.5"),
        (HEAD + "settings: []\nsteps: [survived]\n", "scenario.settings: expected a mapping, got []"),
        (
            HEAD + "text: {limit: 3}\nsteps: [survived]\n",
            "scenario.text.limit: unknown key; did you mean limit_bytes?",
        ),
        (
            HEAD + "text: {sources: /usr}\nsteps: [survived]\n",
            "scenario.text.sources: expected a list, got '/usr'",
        ),
        (HEAD + "steps: [surviv]\n", "steps[0]: unknown step 'surviv'; did you mean survived?"),
        (HEAD + "steps: [3]\n", "steps[0]: expected one `kind: fields`"),
        (HEAD + "steps: [{up: tpu, ready: tpu-dev}]\n", "steps[0]: expected one `kind: fields`"),
        (
            HEAD + "steps: [up: tpus]\n",
            f"steps[0].up.layer: 'tpus' is none of {', '.join(PROJECTS)}",
        ),
        (HEAD + "steps: [up: {layer: tpu, refuse: x}]\n", "steps[0].up.refuse: unknown key; did you mean"),
        (
            HEAD + "steps: [up: {layer: tpu, refused: '('}]\n",
            "steps[0].up: refused: not a regular expression",
        ),
        (HEAD + "steps: [done: ]\n", "steps[0].done.run: expected text, got nothing"),
        (HEAD + "steps: [reach: {run: a}]\n", "steps[0].reach.step: missing"),
        (HEAD + "steps: [same: [a]]\n", "steps[0].same.runs: expected 2 values, got 1"),
        (HEAD + "steps: [same: [a, 2]]\n", "steps[0].same.runs[1]: expected text, got 2"),
        (HEAD + "steps: [settings: 4]\n", "steps[0].settings: expected a mapping, got 4"),
        (
            HEAD + "steps: [request: {method: topics.list}]\n",
            "steps[0].request: method: 'topics.list' isn't API.VERSION",
        ),
        (HEAD + "steps: [clock: -1]\n", "steps[0].clock: rate: -1 is not positive"),
        (
            HEAD + "steps: [kill: {node: n, how: gently, run: r, between: [1, 2]}]\n",
            "steps[0].kill.how: 'gently' is none of notice, power-loss, crash",
        ),
        (
            HEAD + "steps: [kill: {node: n, how: power-loss, run: r, between: [9, 2]}]\n",
            "steps[0].kill: between: 9 is greater than 2",
        ),
        (
            HEAD + "steps: [kills: {node: n, run: r, times: 9, steps: 4}]\n",
            "steps[0].kills: times: 9 kills don't fit into 4 steps",
        ),
        (
            HEAD + "steps: [fault: {name: f, what: {status: 503}, match: {metod: x}}]\n",
            "steps[0].fault: match: unknown ['metod']",
        ),
        (HEAD + "steps: [fault: {name: f, what: {status: 200}}]\n", "steps[0].fault: what.status: 200"),
    ],
)
def test_a_broken_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, text))
    assert said in str(refused.value)


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    text = HEAD + "clok: 3\nsteps: [up: tpus, {reach: {run: a}}]\n"
    with pytest.raises(ScenarioError) as refused:
        load(written(tmp_path, text))
    assert "breaks 3 rule(s)" in str(refused.value)


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="can't be read"):
        load(written(tmp_path, "title: [\n"))


def test_the_command_lines_seed_wins(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "seed: 3\nsteps: [survived]\n")
    assert (load(path).seed, load(path, 9).seed) == (3, 9)


def test_without_a_seed_each_time_another(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD + "steps: [survived]\n")
    assert len({load(path).seed for _ in range(8)}) > 1


def test_names_and_files(tmp_path: Path) -> None:
    assert find("kills") == SCENARIOS / "kills.yaml"
    with pytest.raises(ScenarioError, match="did you mean kills"):
        find("kils")
    with pytest.raises(ScenarioError, match="there is no file"):
        find(str(tmp_path / "none.yaml"))
