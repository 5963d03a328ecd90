"""Secrets of programs at the emulated Secret Manager: what keeps an account from them, and what lets it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from infra.core import present
from infra.core.secrets import ACCESSOR, problems
from infra.doctor import secrets
from infra.google.client import Client, RequestError
from infra.google.failures import Failure, Kind
from infra.layers.gke.pods import PRINCIPALS, member_of
from infra.layers.queue.team import reader, teams
from infra.layers.storage.names import hosts
from infra.settings.schema import Settings
from infra.settings.variables import Secret
from tests.emulated import EVERY_API, OWNER, PROJECT, ZONES, Emulated, Session
from tests.infra.declared import CLUSTER
from tests.infra.layers.queue.test_queue_layer import SETTINGS as QUEUE
from tests.infra.recording import BASE, PROJECT_NUMBER, UPSTREAM, parsed, run

SECRETS = f"secretmanager.googleapis.com/v1/projects/{PROJECT}/secrets"
MEMBERS = "gcp:secretmanager/secretIamMember:SecretIamMember"
# Of one team the secret `own`.
TEAMS = {**QUEUE, "queue:teams": [{"name": "vision", "secrets": ["own"]}, {"name": "speech"}]}
HOSTS = f"tpu-training@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    emulated = Emulated(tmp_path_factory.mktemp("secrets"), zones=ZONES, enabled_apis=EVERY_API)
    account = {"accountId": "tpu-training"}
    emulated.request("POST", f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", account)
    for name in ("granted", "lonely", "own"):
        made = {"replication": {"automatic": {}}}
        assert emulated.request("POST", f"{SECRETS}?secretId={name}", made).status == 200
        version = {"payload": {"data": base64.b64encode(f"value of {name}".encode()).decode()}}
        assert emulated.request("POST", f"{SECRETS}/{name}:addVersion", version).status == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(present, "Client", lambda *_, **__: Client(PROJECT, Session(emulated)))
        storage = run("storage", {"gcp:project": PROJECT, "storage:secrets": ["granted"]})
        queue = run("queue", {**TEAMS, "gcp:project": PROJECT}, up={**UPSTREAM, "gke": CLUSTER})
    for item in (*storage.of(MEMBERS), *queue.of(MEMBERS)):
        resource = f"projects/{item.inputs['project']}/secrets/{item.inputs['secretId']}"
        emulated.grant(resource, item.inputs["role"], item.inputs["member"])
    yield emulated
    emulated.close()


def settings(*secrets: str) -> Settings:
    return parsed({**BASE, **TEAMS, "gcp:project": PROJECT, "storage:secrets": [*secrets]})


def refusals(cloud: Emulated, secret: Secret, *declared: str, who: str = OWNER, team: str = "") -> list[str]:
    known = settings(*declared)
    of_teams = {own.name: reader(known, own) for own in teams(known)}
    google = Client(PROJECT, Session(cloud, who), sleep=lambda _: None)
    return [str(item) for item in problems(google, known, [secret], of_teams.get(team, hosts(known)))]


def test_the_layer_lets_the_hosts_account_read_what_the_settings_name_and_no_other(cloud: Emulated) -> None:
    token = cloud.token_of(HOSTS)
    answers = {
        name: cloud.request("GET", f"{SECRETS}/{name}/versions/latest:access", token=token)
        for name in ("granted", "lonely")
    }
    assert base64.b64decode(answers["granted"].json["payload"]["data"]) == b"value of granted"
    assert answers["lonely"].status == 403
    assert refusals(cloud, Secret("A", "granted"), "granted") == []
    assert refusals(cloud, Secret("A", "granted", "1")) == [], (
        "granted by hand, as far as these settings know"
    )


def test_a_secret_that_isnt_there_is_refused_with_the_command_that_creates_it(cloud: Emulated) -> None:
    (message,) = refusals(cloud, Secret("A", "none"), "none")
    assert f"{PROJECT} has no such secret\n" in message
    fix = f"printf %s VALUE | gcloud secrets create none --project={PROJECT} --data-file=-"
    assert fix in message
    (message,) = refusals(cloud, Secret("A", "granted", "7"), "granted")
    added = f"printf %s VALUE | gcloud secrets versions add granted --project={PROJECT} --data-file=-"
    assert message.endswith(f"it has no version 7\n    fix: {added}; or name another")


def test_a_version_that_is_disabled_is_refused_with_the_command_that_enables_it(cloud: Emulated) -> None:
    version = cloud.world.directory[f"projects/{PROJECT}/secrets/granted/versions/1"]
    version["state"] = "DISABLED"
    (message,) = refusals(cloud, Secret("A", "granted", "1"), "granted")
    version["state"] = "ENABLED"
    assert "its version 1 is DISABLED\n    fix: gcloud secrets versions enable 1 --secret=granted" in message


def test_pods_read_their_teams_secrets_and_no_other_teams(cloud: Emulated) -> None:
    answers = {}
    for team in ("vision", "speech"):
        token = cloud.token_of(f"{PRINCIPALS}{PROJECT_NUMBER}{member_of(settings(), team)}")
        answers[team] = cloud.request("GET", f"{SECRETS}/own/versions/latest:access", token=token)
    assert base64.b64decode(answers["vision"].json["payload"]["data"]) == b"value of own"
    assert answers["speech"].status == 403
    assert refusals(cloud, Secret("A", "own"), team="vision") == []
    (message,) = refusals(cloud, Secret("A", "own"), team="speech")
    assert (
        "/ns/speech/sa/trainer, and isn't\n    fix: secrets of speech in queue:teams: [own], then" in message
    )


@pytest.mark.parametrize(("declared", "team", "fix"), [
    ((), "", "storage:secrets: [lonely], then tpu up dev storage; or gcloud secrets "
     f"add-iam-policy-binding lonely --project={PROJECT} --member=serviceAccount:{HOSTS} --role={ACCESSOR}"),
    (("lonely",), "", "tpu up dev storage"),
    (("lonely",), "vision", "tpu up dev gke"),
    ((), "vision", "secrets of vision in queue:teams: [lonely], then tpu up dev queue"),
])  # fmt: skip
def test_an_account_that_may_not_read_it_is_named_with_the_grant(
    declared: tuple[str, ...], team: str, fix: str, cloud: Emulated
) -> None:
    (message,) = refusals(cloud, Secret("A", "lonely"), *declared, team=team)
    assert "must be readable by " in message
    assert message.endswith(f"fix: {fix}")


def test_a_login_that_may_not_look_takes_the_settings_word(cloud: Emulated) -> None:
    assert refusals(cloud, Secret("A", "granted"), "granted", who="user:ada@example.com") == []
    (message,) = refusals(cloud, Secret("A", "granted"), who="user:ada@example.com")
    assert "isn't in storage:secrets, and you may not look up who reads it, or if it is there" in message
    google, notes = Client(PROJECT, Session(cloud, "user:ada@example.com"), sleep=lambda _: None), list[str]()
    given, known = [Secret("A", "granted", "7"), Secret("B", "granted")], settings("granted")
    assert not [*problems(google, known, given, hosts(known), notes.append)]
    assert [item.partition(";")[0] for item in notes] == [
        "granted@7: you may not look up if this version is there"
    ]
    made = f"printf %s VALUE | gcloud secrets create granted --project={PROJECT} --data-file=-"
    assert f"fix: if it isn't there: {made}; then storage:secrets: [granted], then tpu up" in message


def test_pods_are_granted_the_same_secrets() -> None:
    changes = {**QUEUE, "storage:secrets": ["granted"], "gke:namespaces": ["vision", "speech"]}
    grants = [item.inputs for item in run("gke", changes).of(MEMBERS)]
    assert {(item["secretId"], item["role"]) for item in grants} == {("granted", ACCESSOR)}
    known = parsed({**BASE, **changes})
    ends = [member_of(known, namespace) for namespace in ("speech", "vision")]
    assert all(
        item.endswith(end) for item, end in zip(sorted(item["member"] for item in grants), ends, strict=True)
    )


def test_an_update_without_a_secret_of_the_settings_is_refused_and_a_preview_warns(
    cloud: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"gcp:project": PROJECT, "storage:secrets": ["none"]}
    monkeypatch.setattr(present, "Client", lambda *_, **__: Client(PROJECT, Session(cloud)))
    with pytest.raises(Exception, match=r'storage:secrets = "none": wire-test has no such secret'):
        run("storage", changes)
    warned: list[str] = []
    monkeypatch.setattr(present.pulumi.log, "warn", warned.append)
    run("storage", changes, preview=True)
    assert "fix: printf %s VALUE | gcloud secrets create none" in warned[0]
    monkeypatch.setattr(present, "Client", lambda *_, **__: Client(PROJECT, Session(cloud, "user:ada@x.org")))
    assert run("storage", changes).of(MEMBERS), "who may not look finds out by the grant"


@pytest.mark.parametrize(("names", "lines"), [
    (["granted"], ["ok hosts may read granted; of teams: own"]),
    (["none", "lonely"], [
        f'missing "none": {PROJECT} has no such secret',
        f'missing "lonely": must be readable by serviceAccount:{HOSTS}, and isn\'t',
    ]),
])  # fmt: skip
def test_the_doctor_reports_each_secret(names: list[str], lines: list[str], cloud: Emulated) -> None:
    google = Client(PROJECT, Session(cloud), sleep=lambda _: None)
    reported = secrets.check(google, settings(*names), "secrets")
    assert [f"{finding.state} {finding.detail}" for finding in reported] == lines


def test_a_secret_that_the_login_may_not_look_up_is_not_reported_as_readable(cloud: Emulated) -> None:
    google = Client(PROJECT, Session(cloud, "user:ada@x.org"), sleep=lambda _: None)
    findings = [*secrets.check(google, settings("granted"), "secrets")]
    assert (findings[0].state, findings[0].detail) == ("optional", '"granted" can\'t be looked up')
    assert "ok" not in {finding.state for finding in findings}


def test_the_doctor_reports_a_teams_secret_that_is_missing(cloud: Emulated) -> None:
    teams_ = [{"name": "vision", "secrets": ["none"]}, {"name": "speech"}]
    given = parsed({**BASE, **TEAMS, "gcp:project": PROJECT, "queue:teams": teams_})
    google = Client(PROJECT, Session(cloud), sleep=lambda _: None)
    (finding,) = secrets.check(google, given, "secrets")
    assert finding.detail == f'"none": {PROJECT} has no such secret'
    assert finding.fix.startswith("printf %s VALUE | gcloud secrets create none")


def test_who_may_not_look_for_a_teams_secret_is_well(cloud: Emulated) -> None:
    google = Client(PROJECT, Session(cloud, "user:ada@x.org"), sleep=lambda _: None)
    given = parsed({**BASE, **TEAMS, "gcp:project": PROJECT})
    assert "optional" in [finding.state for finding in secrets.check(google, given, "secrets")]
    assert "missing" not in [finding.state for finding in secrets.check(google, given, "secrets")]


def test_an_outage_while_the_doctor_looks_for_a_teams_secret_is_no_missing_role(
    cloud: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = RequestError(Failure(Kind.TRANSIENT, "503"))
    monkeypatch.setattr(secrets, "missing", Mock(side_effect=outage))
    google = Client(PROJECT, Session(cloud), sleep=lambda _: None)
    with pytest.raises(RequestError):
        list(secrets.check(google, parsed({**BASE, **TEAMS, "gcp:project": PROJECT}), "secrets"))
