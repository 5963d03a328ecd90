"""`tpu job`: what it prints, asks and returns, on a cluster whose answers are written here."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cli import job as command
from cli.__main__ import main
from infra.google.client import RequestError
from infra.google.failures import Failure, Kind
from infra.layers.queue.jobs.client import COMPLETED, FAILED, QUEUED, RUNNING, Status
from infra.layers.queue.jobs.jobset import Job
from infra.layers.queue.kueue import Team
from infra.prices.run import RunPrice, of_hours
from infra.settings.schema import Settings
from tests.infra.layers.queue.test_submission import settings

UNKNOWN = of_hours(None, None)


def status(state: str, name: str = "train-tiny", **more: Any) -> Status:
    given = {"why": "", "priority": "medium", "hosts": 4, "running": 0, "created": "2026-11-24T09:00:00Z"}
    return Status(name=name, state=state, **{**given, **more})


class Cluster:
    """Jobs of a team, each asked for gives its next status, the last one again and again."""

    def __init__(self, *states: Status | None, logs: dict[str, Sequence[tuple[str, str]]] | None = None):
        self.states, self.logs = list(states), logs or {}
        self.workers: dict[int, list[str]] = {}
        self.first_failed: tuple[int, str, int] | None = None
        self.submitted: list[Job] = []
        self.cancelled: list[str] = []
        self.read: list[tuple[str, str, int | None]] = []

    def submit(self, job: Job) -> None:
        self.submitted.append(job)

    def cancel(self, name: str) -> None:
        self.cancelled.append(name)

    def status(self, name: str) -> Status | None:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def all(self) -> Sequence[Status]:
        return [state for state in self.states if state]

    def worker(self, name: str, number: int) -> str | None:
        pods = self.workers.get(number, [])
        return pods.pop(0) if len(pods) > 1 else next(iter(pods), None)

    def failed(self, name: str) -> tuple[int, str, int] | None:
        return self.first_failed

    def log(self, pod: str, since: str = "", lines: int | None = None) -> Iterator[tuple[str, str]]:
        self.read.append((pod, since, lines))
        yield from (line for line in self.logs.get(pod, ()) if line[0] > since)


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "from_file", lambda _: settings())
    monkeypatch.setattr(command, "_POLL_S", 0)


def on(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> Cluster:
    monkeypatch.setattr(command, "_jobs", lambda _, team: cluster)
    return cluster


def follow(cluster: Cluster, hourly: float | None = None, predicted: RunPrice = UNKNOWN) -> int:
    return command._follow(cluster, "train-tiny", hourly, predicted)  # type: ignore[arg-type]


def test_each_change_and_each_line_of_worker_0_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    queued = status(QUEUED, position=2, why="16 more needed")
    running = status(RUNNING, running=4)
    cluster = Cluster(
        queued, queued, running, running, status(RUNNING, running=4, restarts=1), status(COMPLETED)
    )
    cluster.workers[0] = ["one", "one", "one", "one", "two"]
    cluster.logs = {"one": [("1", "step 1"), ("2", "step 2")], "two": [("3", "step 2 again")]}
    assert follow(cluster) == 0
    assert capsys.readouterr().out.splitlines() == [
        "train-tiny: queued, number 2 in the queue, 16 more needed",
        "  | step 1",
        "  | step 2",
        "train-tiny: running, 4 of 4 hosts",
        "train-tiny: running, 4 of 4 hosts, restarted 1 time, 0 of them counted",
        "  | step 2 again",
        "train-tiny: completed",
    ]
    assert cluster.read[-2:] == [("two", "", None), ("two", "3", None)]


def test_of_a_failed_job_the_worker_that_failed_first_speaks_last(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(status(FAILED, why="a worker failed"))
    cluster.workers[0], cluster.first_failed = ["zero"], (2, "two", 3)
    cluster.logs = {"zero": [("1", "loss 2")], "two": [("1", "NaN")]}
    assert follow(cluster) == 1
    assert capsys.readouterr().out.splitlines() == [
        "train-tiny: failed, a worker failed",
        "  | loss 2",
        "train-tiny: worker 2 failed first, with status 3",
        "  | NaN",
    ]
    assert cluster.read[-1] == ("two", "", 30)


def test_a_failure_that_the_status_names_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    why = "worker 2 failed first, with status 3: tpu job logs dev vision train-tiny"
    cluster = Cluster(status(FAILED, why=why))
    cluster.first_failed, cluster.logs = (2, "two", 3), {"two": [("1", "NaN")]}
    assert follow(cluster) == 1
    assert capsys.readouterr().out.splitlines() == [f"train-tiny: failed, {why}", "  | NaN"]


def test_what_worker_0_printed_before_it_failed_isnt_printed_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = Cluster(status(FAILED))
    cluster.workers[0], cluster.first_failed = ["zero"], (0, "zero", 3)
    cluster.logs = {"zero": [("1", "NaN")]}
    follow(cluster)
    assert capsys.readouterr().out.count("NaN") == 1


@pytest.mark.parametrize(("ended", "hourly", "predicted", "last"), [
    (status(COMPLETED, admitted_s=1800.0), 22.0, of_hours(22.0, 2),
     "train-tiny: 30 min since its admission, $11.00; predicted $44.00"),
    (status(FAILED, admitted_s=1800.0), 22.0, of_hours(22.0, None),
     "train-tiny: 30 min since its admission, $11.00"),
    (status(COMPLETED, admitted_s=1800.0), None, UNKNOWN, "train-tiny: completed"),
    (status(COMPLETED), 22.0, of_hours(22.0, 2), "train-tiny: completed"),
])  # fmt: skip
def test_what_a_job_cost_stands_beside_what_was_predicted(
    ended: Status, hourly: float | None, predicted: RunPrice, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(Cluster(ended), hourly, predicted)
    assert capsys.readouterr().out.splitlines()[-1].partition(" (")[0] == last


def test_a_job_that_is_gone_was_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(Cluster(None)) == 1
    assert capsys.readouterr().out == "train-tiny: cancelled, by this or another command\n"


SUBMIT = ["job", "submit", "dev", "vision", "--detach", "--", "train", "tiny.toml"]


def test_submitting_names_pools_price_and_the_next_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster())
    assert main(SUBMIT) == 0
    assert [item.name for item in cluster.submitted] == ["train-tiny"]
    out = capsys.readouterr().out
    assert "job train-tiny of vision: 1 x v6e-16 (4x4, 4 hosts of ct6e-standard-4t) in us-east5-b" in out
    assert "  priority medium; $22.45 an hour while it runs (prices read " in out
    assert "predicted" not in out
    before, _, after = out.partition("submitted\n")
    assert "  run: vision-train-tiny; a run of that name is continued\n" in before
    for line in (
        "  output:  tpu job logs dev vision train-tiny --follow",
        "  end it:  tpu job cancel dev vision train-tiny",
        "  curves:  tpu runs show dev vision-train-tiny",
    ):  # fmt: skip
        assert line in after.splitlines()


def test_a_price_is_predicted_by_the_hours_and_refused_above_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = on(monkeypatch, Cluster())
    timed = [*SUBMIT[:4], "--yes", "--hours", "2", *SUBMIT[4:]]
    assert main(timed) == 0
    assert "  predicted: $44.91 (" in capsys.readouterr().out
    monkeypatch.setattr(command, "from_file", lambda _: settings(**{"fleet:dollarsPerRun": 40}))
    assert main(timed) == 2
    assert (
        "this run would cost $44.91 ($22.45 an hour, 2 h), fleet:dollarsPerRun allows $40"
        in capsys.readouterr().err
    )
    assert main([*timed[:4], "--out", str(tmp_path / "job.yaml"), *timed[4:]]) == 2
    assert "this run would cost $44.91" in capsys.readouterr().err
    assert not (tmp_path / "job.yaml").exists()
    assert main(SUBMIT) == 2
    assert "fix: --hours N" in capsys.readouterr().err
    assert len(cluster.submitted) == 1


def test_stopping_to_look_leaves_the_job_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster())

    def interrupted(_: str) -> Status:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "status", interrupted)
    assert main([word for word in SUBMIT if word != "--detach"]) == 130
    assert "  output:  tpu job logs dev vision train-tiny --follow" in capsys.readouterr().err
    assert (len(cluster.submitted), cluster.cancelled) == (1, [])


@pytest.mark.parametrize("out", ["/nonexistent/job.yaml", "/", ""])
def test_a_manifest_that_cant_be_written_is_named_and_nothing_submitted(
    out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster())
    assert main(["job", "submit", "dev", "vision", "--out", out, "--", "train", "tiny.toml"]) == 1
    assert capsys.readouterr().err.startswith(f"error: --out {out or repr(out)}: ")
    assert not cluster.submitted


def test_the_next_command_takes_any_name_of_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, Cluster())
    out = tmp_path / "my job's.yaml"
    assert main(["job", "submit", "dev", "vision", "--out", str(out), "--", "train", "tiny.toml"]) == 0
    apply = f"kubectl apply --server-side -f {shlex.quote(str(out))}"
    assert f"# {apply}" in out.read_text("utf-8")
    assert capsys.readouterr().out.rstrip().endswith(apply)


@pytest.mark.parametrize(("change", "problem"), [
    ("train.stps=3", "perhaps train.steps was meant"), ("train.steps=abc", "train.steps is a whole number"),
    ("train.steps=0", "1 problem in tiny.toml"),
])  # fmt: skip
def test_what_the_trainer_would_refuse_is_refused_before_a_slice_is_paid_for(
    change: str, problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster())
    assert main([*SUBMIT, "--set", change]) == 2
    shown = capsys.readouterr().err
    assert problem in shown
    assert cluster.submitted == []


def test_a_program_without_the_dashes_is_refused_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "submit", "dev", "vision", "train", "tiny.toml"]) == 2
    assert "unexpected extra arguments (train tiny.toml) Pass PROGRAM after --." in capsys.readouterr().err


REFUSED = RequestError(Failure(Kind.PERMISSION, "may not list jobsets"))


def listing(monkeypatch: pytest.MonkeyPatch, **teams: Sequence[Status] | Exception) -> None:
    class One(Cluster):
        def __init__(self, team: Team):
            super().__init__()
            self.jobs = teams[team.name]

        def all(self) -> Sequence[Status]:
            if isinstance(self.jobs, Exception):
                raise self.jobs
            return self.jobs

    monkeypatch.setattr(command, "_jobs", lambda _, team: One(team))


def test_jobs_of_all_teams_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing(monkeypatch, vision=[status(RUNNING, running=4)], speech=[status(QUEUED, "b", position=1)])
    assert main(["job", "list", "dev"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["team", "job", "priority", "created", "state"]
    assert [row.split(maxsplit=4) for row in rows] == [
        ["vision", "train-tiny", "medium", "2026-11-24T09:00:00Z", "running, 4 of 4 hosts"],
        ["speech", "b", "medium", "2026-11-24T09:00:00Z", "queued, number 1 in the queue"],
    ]
    assert main(["job", "list", "dev", "speech", "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert (item["team"], item["name"], item["position"]) == ("speech", "b", 1)


def test_jobs_of_another_team_are_not_shown_and_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing(monkeypatch, vision=[], speech=REFUSED)
    assert main(["job", "list", "dev"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "not shown, no access: speech\n"
    assert shown.out == "no jobs\n  next: tpu job submit dev vision -- train tiny.toml\n"
    listing(monkeypatch, vision=REFUSED, speech=[])
    assert main(["job", "list", "dev"]) == 0
    assert "next: tpu job submit dev speech -- train" in capsys.readouterr().out
    listing(monkeypatch, vision=REFUSED, speech=REFUSED)
    assert main(["job", "list", "dev"]) == 1
    assert "may not list jobsets\n    fix: the platform engineer adds your account" in capsys.readouterr().err
    listing(monkeypatch, vision=RequestError(Failure(Kind.TRANSIENT, "503")), speech=[])
    assert main(["job", "list", "dev"]) == 1


def logs(*options: str) -> int:
    return main(["job", "logs", "dev", "vision", "train-tiny", *options])


def test_logs_are_those_of_worker_0_or_of_the_one_that_failed_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster(status(RUNNING)))
    cluster.workers = {0: ["zero"], 2: ["two"]}
    cluster.logs = {"zero": [("1", "from 0")], "two": [("1", "from 2")]}
    cluster.first_failed = (2, "two", 3)
    assert logs("--lines", "5") == 0
    assert cluster.read == [("zero", "", 5)]
    cluster.states = [status(FAILED)]
    assert logs() == 0
    assert logs("--worker", "0") == 0
    assert capsys.readouterr().out.splitlines() == ["from 0", "from 2", "from 0"]


def test_logs_are_followed_to_the_jobs_end_and_its_last_lines_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster(status(RUNNING), status(RUNNING), status(RUNNING), status(COMPLETED)))
    cluster.workers, cluster.logs = {0: ["zero"]}, {"zero": [("1", "a"), ("2", "b")]}
    assert logs("--follow", "--lines", "2") == 0
    assert cluster.read == [("zero", "", 2), ("zero", "2", None), ("zero", "2", None)]
    assert capsys.readouterr().out.splitlines() == ["a", "b"]


@pytest.mark.parametrize(("options", "message"), [
    (["--worker", "4"], "has no worker 4: it has 4, and the first is 0\n    fix: --worker with 0 to 3"),
    (["--worker", "3"], "worker 3 has no pod: queued"),
])  # fmt: skip
def test_a_worker_without_a_log_is_named(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on(monkeypatch, Cluster(status(QUEUED)))
    assert logs(*options) == 2 * ("fix" in message)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--worker", "--lines"])
def test_numbers_begin_at_0(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert logs(option, "-1") == 2
    assert f"Invalid value for '{option}': -1 is not in the range x>=0" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["logs", "cancel"])
def test_a_job_that_isnt_there_is_refused_with_those_that_are(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = on(monkeypatch, Cluster(None))
    monkeypatch.setattr(cluster, "all", lambda: [status(RUNNING, "other")])
    assert main(["job", verb, "dev", "vision", "mine"]) == 2
    shown = capsys.readouterr().err
    assert "vision has no job mine; its jobs: other" in shown
    assert "fix: tpu job list dev vision" in shown


def test_a_living_job_is_cancelled_after_a_question_and_an_ended_one_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["job", "cancel", "dev", "vision", "train-tiny"]
    cluster = on(monkeypatch, Cluster(status(RUNNING, running=4)))
    assert main(line) == 1
    assert (
        "Cancel train-tiny, which is running, 4 of 4 hosts? There is no terminal" in capsys.readouterr().err
    )
    assert cluster.cancelled == []
    assert main([*line, "--yes"]) == 0
    assert capsys.readouterr().out == "train-tiny is cancelled; its checkpoints stay in the bucket\n"
    cluster.states = [status(COMPLETED)]
    assert main(line) == 0
    assert cluster.cancelled == ["train-tiny", "train-tiny"]
    assert capsys.readouterr().out.startswith("train-tiny had completed and is off the list; its checkpoints")
    cluster.states = [status(QUEUED, position=1, why="waits for 1 more chip of a")]
    assert main(line) == 1
    assert "Cancel train-tiny, which is queued, number 1 in the queue? There" in capsys.readouterr().err


def test_a_cluster_that_isnt_yours_to_see_names_who_can_change_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise REFUSED

    monkeypatch.setattr(command, "cluster_named", refused)
    monkeypatch.setattr("cli.job.Client.json", refused)  # its address neither
    assert main(["job", "list", "dev", "vision"]) == 1
    shown = capsys.readouterr().err
    assert "no access to the cluster tpu: may not list jobsets" in shown
    assert "adds your account to the members of a team in queue:teams" in shown
    assert "if your account is a member, the cluster isn't up: tpu up dev gke queue" in shown


@pytest.mark.parametrize(("who", "message"), [
    ("ada@example.com", "the cluster tpu isn't up, or not since ada@example.com is in queue:teams\n"
     "    fix: the platform engineer brings it up: tpu up dev gke queue\n"),
    ("eve@example.com", "no access to the cluster tpu: may not list jobsets\n    fix: the platform engineer"),
])  # fmt: skip
def test_a_member_whose_cluster_is_down_isnt_told_to_become_one(
    who: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object) -> None:
        raise REFUSED

    teams = [{"name": "vision", "members": ["user:ada@example.com"]}]
    monkeypatch.setattr(command, "from_file", lambda _: settings(**{"queue:teams": teams}))
    monkeypatch.setattr(command, "cluster_named", refused)
    monkeypatch.setattr("cli.job.Client.json", lambda *_: {"email": who})
    assert main(["job", "list", "dev", "vision"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")


@pytest.mark.parametrize("line", [
    ["list", "dev", "speech"], ["logs", "dev", "speech", "train"], ["cancel", "dev", "speech", "train"],
    ["submit", "dev", "speech", "--", "train", "tiny.toml"],
])  # fmt: skip
def test_what_another_teams_namespace_refuses_comes_with_who_can_change_that(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No role at Google helps there, which a refusal by Google would name."""

    def refused(*_: object) -> None:
        raise REFUSED

    monkeypatch.setattr(command, "_jobs", refused)
    assert main(["job", *line]) == 1
    shown = capsys.readouterr().err
    assert shown == (
        "error: may not list jobsets\n"
        "    fix: the platform engineer adds your account to the members of speech in queue:teams, then "
        "tpu up dev queue\n"
    )


def test_without_a_team_there_are_no_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "from_file", lambda _: settings(**{"queue:teams": []}))
    assert main(["job", "list", "dev"]) == 2
    assert "queue:teams = []: jobs are submitted by teams\n    fix: write e.g." in capsys.readouterr().err


def test_without_the_layer_there_are_no_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(_: str) -> Settings:
        return settings(**{"queue:teams": None, "queue:kueueImage": None, "queue:image": None})

    monkeypatch.setattr(command, "from_file", without)
    assert main(["job", "list", "dev"]) == 2
    assert "queue is off in dev" in capsys.readouterr().err
