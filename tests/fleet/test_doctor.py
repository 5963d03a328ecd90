"""The doctor before the emulated cloud: what is asked is validated there, and every ill is found at once."""

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import google.oauth2.credentials
import pytest
import requests
from google.auth.transport.requests import AuthorizedSession, Request
from requests.adapters import HTTPAdapter

from fleet import doctor, observing
from fleet.adhoc import AdHoc
from fleet.controller_state import ControllerState, Refusal
from fleet.google import Google
from fleet.model import ObservedNode
from fleet.store import BucketStore
from infra.core.environment import required_services
from infra.doctor import checks
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.doctor.report import UNKNOWN, format_report, healthy, run_checks
from infra.engine.named import StackState
from infra.engine.registry import layers
from infra.engine.settings import parse
from infra.errors import CommandError
from infra.google import client as asking
from infra.google.client import RequestError, object_url
from infra.google.failures import Failure, Kind
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu import startup
from infra.settings.schema import Settings
from infra.slices.names import bundle_blob, bundle_manifest
from infra.slices.nodes import nodes
from rehearsal.cloud.__main__ import NoHosts
from rehearsal.cloud.services.tpu.catalog import ZONES
from rehearsal.cloud.services.tpu.quotas import CPUS, GRANTED, ON_DEMAND, REVOCABLE
from tests.emulated import OWNER, REFRESH_TOKEN, Emulated
from tests.fleet import conftest as mine
from tests.fleet.command import fleet
from tests.infra.recording import OFF

PROJECT, BUCKET, TOKEN = "my-project", "my-project-checkpoints", REFRESH_TOKEN
BUNDLE = "ab" * 32
LAYERS = tuple(layer.name for layer in layers())
STORAGE = "https://storage.googleapis.com"


def settings(**more: Any) -> Settings:
    slices = [
        {"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-b"], "run": "train tiny.toml"},
        {
            "name": "extract", "acceleratorType": "v6e-8", "zones": ["us-east5-a", "us-east5-b"], "count": 4,
            "spot": True, "run": "extract qwen2.5-0.5b.toml --stream gs://b/streams",
        },
    ]  # fmt: skip
    values = {
        "gcp:project": PROJECT, "storage:bucketName": BUCKET, "storage:location": "us-east5",
        "tpu:bundle": BUNDLE, "tpu:slices": json.dumps(slices), "data:snapshot": "tokens", **more,
    }  # fmt: skip
    return parse("dev", {key: value for key, value in values.items() if value}, "Pulumi.dev.yaml")


class Loopback(HTTPAdapter):
    """Leads every request to the emulated cloud's front door, which speaks HTTP here."""

    def __init__(self, port: int):
        super().__init__()
        self._port = port

    def send(self, request: requests.PreparedRequest, *arguments: Any, **more: Any) -> requests.Response:
        parts = urlsplit(str(request.url))
        request.headers["Host"] = parts.netloc
        request.url = parts._replace(scheme="http", netloc=f"127.0.0.1:{self._port}").geturl()
        return super().send(request, *arguments, **more)


class Clinic(Emulated):
    """An emulated cloud in which all is well, and a patient who looks at it."""

    def __init__(self, folder: Path):
        apis = (*required_services(settings()), "serviceusage.googleapis.com")
        zones = (*sorted(ZONES), "us-east5-c")  # the last has no v6e
        super().__init__(folder, PROJECT, NoHosts(), enabled_apis=apis, zones=zones)
        owner = self.session(TOKEN)
        for name in (BUCKET, f"{BUCKET}-fleet", f"{BUCKET}-steps"):
            made = owner.post(f"{STORAGE}/storage/v1/b?project={PROJECT}", json={"name": name})
            assert made.ok, made.text
        put = f"{STORAGE}/upload/storage/v1/b/{BUCKET}/o"
        for name in (bundle_manifest(BUNDLE), bundle_blob(startup.script_sha256())):
            assert owner.post(put, params={"uploadType": "media", "name": name}, data=b"").ok
        self.world.directory[f"projects/{PROJECT}/global/snapshots/tokens"] = {"name": "tokens"}
        account = {"accountId": "tpu-training"}
        made = owner.post(f"https://iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", json=account)
        assert made.ok, made.text

    def session(self, refresh_token: str) -> requests.Session:
        carrier = requests.Session()
        carrier.mount("https://", Loopback(self.cloud.port))
        credentials = google.oauth2.credentials.Credentials(  # type: ignore[no-untyped-call]
            None, refresh_token=refresh_token, token_uri="https://oauth2.googleapis.com/token",
            client_id="i", client_secret="s",
        )  # fmt: skip
        request = Request(carrier)  # type: ignore[no-untyped-call]
        session: requests.Session = AuthorizedSession(credentials, auth_request=request)  # type: ignore[no-untyped-call]
        session.mount("https://", Loopback(self.cloud.port))
        return session

    def as_(self, principal: str, *roles: str) -> requests.Session:
        """Return a session of another account, with these roles on the project."""

        async def grant() -> str:
            policy = self.cloud.iam.policy(f"projects/{PROJECT}")
            policy["bindings"] += [{"role": role, "members": [f"user:{principal}"]} for role in roles]
            self.cloud.iam.set_policy(f"projects/{PROJECT}", policy)
            return self.cloud.iam.mint(principal).value

        session = requests.Session()
        session.mount("https://", Loopback(self.cloud.port))
        session.headers["Authorization"] = f"Bearer {self.call(grant())}"
        return session

    def look(self, meant: Settings | None = None, session: requests.Session | None = None) -> list[Finding]:
        meant = meant or settings()
        return examine(meant, self.google(session, meant[StorageSettings].bucket_name))

    def cure(self) -> None:
        """Undo a test's faults, quotas and objects."""
        for rule in self.cloud.faults.report():
            self.cloud.faults.lift(rule["id"])
        for quota, zone in product(
            (*ON_DEMAND, *REVOCABLE, *CPUS), ("us-east5-a", "us-east5-b", "us-east1-d")
        ):
            self.cloud.quotas.set(quota.name, quota.place(zone), GRANTED)
        google = self.google()
        for name in google.saved(""):
            google.send("DELETE", object_url(google.controller_bucket, name))

    def google(self, session: requests.Session | None = None, bucket: str = BUCKET) -> Google:
        return Google(PROJECT, bucket, session=session or self.session(TOKEN))


def examine(meant: Settings, google: Google) -> list[Finding]:
    target = checks.Target(meant, nodes(meant), google)
    return run_checks([*checks.checks(target), *doctor.checks(meant, google)])


class Stacks:
    """Pulumi, with the layers that are on up, unless `down` says otherwise."""

    down = OFF
    broken = ""

    def __init__(self, environment: str):
        self.environment = environment

    def state(self, layer: str) -> list[dict[str, Any]]:
        if self.broken:
            raise CommandError(self.broken)
        if layer in self.down:
            return []
        ids = [
            BUCKET,
            f"{BUCKET}-steps",
            f"projects/{PROJECT}/serviceAccounts/tpu-training@{PROJECT}.iam.gserviceaccount.com",
        ]
        return [{"type": "pulumi:pulumi:Stack"}, *({"id": id_} for id_ in ids if layer == "storage")]


@pytest.fixture(name="shared", scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    clinic = Clinic(tmp_path_factory.mktemp("clinic"))
    yield clinic
    clinic.close()


@pytest.fixture(name="clinic")
def _clinic(shared: Clinic, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clinic]:
    monkeypatch.setattr(checks, "Pulumi", type("Fresh", (Stacks,), {}))
    monkeypatch.setattr(doctor, "read_stack", lambda _: StackState(mine.OWNER.stack, {"train": "us-east5-b"}))
    monkeypatch.setattr(checks, "unsettled", lambda environment, layer: [])
    monkeypatch.setattr(asking, "_PAUSE_S", 0.001)
    yield shared
    shared.cure()


def of(findings: list[Finding], what: str) -> list[Finding]:
    return [finding for finding in findings if finding.what == what]


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.what: finding.state for finding in findings if finding.state != OK}


def refusals(methods: dict[str, Any]) -> int:
    return sum(counts["refused"] for counts in methods.values())


def test_where_all_is_well_nothing_is_missing(clinic: Clinic) -> None:
    before = clinic.cloud.requests.counts()["methods"]
    look = clinic.look()
    assert not states(look)
    assert healthy(look)
    output = format_report(look)
    assert re.search(rf"ok +login +{OWNER}", output)
    assert re.search(r"ok +zone us-east5-b +offers v2-alpha-tpuv6e, v6e-16, v6e-8", output)
    name = "TPUV6EPreemptiblePerProjectPerRegionForTPUAPI"
    assert f"{name}: the settings ask for 32 spot chips, allowed are 8192" in output
    assert output.endswith("nothing is missing")
    after = clinic.cloud.requests.counts()["methods"]
    assert len(after) >= 11, "each is validated against Google's description of it"
    assert refusals(after) == refusals(before)


def test_every_ill_is_found_at_once_and_has_a_fix(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    clinic.cloud.quotas.set("TPUV6EPreemptiblePerProjectPerZoneForTPUAPI", "us-east5-a", 8)
    monkeypatch.setattr(checks.Pulumi, "down", OFF | {"network", "tpu"})
    ill = settings(
        **{
            "storage:kmsKey": f"projects/{PROJECT}/locations/us-east5/keyRings/r/cryptoKeys/k",
            "storage:serviceAccountId": "tpu-others", "tpu:bundle": "cd" * 32,
            "tpu:runtimeVersion": "my-image",
        }
    )  # fmt: skip
    look = clinic.look(ill)
    assert states(look) == dict.fromkeys(
        ("APIs", "host account", "bundle", "stack network", "stack tpu", "zone us-east5-a", "zone us-east5-b",
         "quota us-east5-a"), MISSING,
    )  # fmt: skip
    assert all(item.fix for item in look if item.state == MISSING)
    assert not healthy(look)
    assert of(look, "APIs")[0].detail == "off: cloudkms.googleapis.com"
    assert "8 missing: APIs, host account, bundle" in format_report(look)
    (short,) = of(look, "quota us-east5-a")
    assert "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI: the settings ask for 16 spot chips" in short.detail
    request = "--quota-id=TPUV6EPreemptiblePerProjectPerZoneForTPUAPI --dimensions=zone=us-east5-a"
    assert f"{request} --preferred-value=16" in short.fix


def test_the_slice_that_the_pipeline_trains_on_needs_its_quota_too(clinic: Clinic) -> None:
    pipeline = {
        "pipeline:rawBucketName": "my-project-raw", "pipeline:train": "fleet",
        "pipeline:trainZone": "us-east5-a", "pipeline:trainSlice": "v6e-8",
    }  # fmt: skip
    quotas = [item.detail for item in of(clinic.look(settings(**pipeline)), "quota us-east5-a")]
    assert [quota for quota in quotas if "the settings ask for 24 spot chips" in quota]


@pytest.mark.parametrize("quota", [*ON_DEMAND, *REVOCABLE], ids=lambda quota: quota.name)
def test_a_quota_has_the_name_by_which_google_refuses(clinic: Clinic, quota: Any) -> None:
    place = quota.place("us-east5-b")
    clinic.cloud.quotas.set(quota.name, place, 15)
    (short,) = [item for item in clinic.look() if item.state == MISSING]
    assert short.what == f"quota {place}"
    assert short.detail.startswith(f"{quota.name}: the settings ask for ")
    assert short.detail.endswith("allowed are 15")


def test_nobody_logged_in_leaves_the_rest_unknown(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    look = clinic.look(session=clinic.session("1//revoked"))
    assert of(look, "login")[0].state == MISSING
    assert of(look, "login")[0].fix == "gcloud auth application-default login"
    assert of(look, "bucket")[0].state == UNKNOWN
    assert {item.state for item in look if item.what.startswith("stack")} == {OK}

    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    look = examine(settings(), Google(PROJECT, BUCKET))
    assert of(look, "login")[0].state == MISSING
    assert "/nowhere.json" in of(look, "login")[0].detail
    assert of(look, "quota")[0].state == UNKNOWN


def test_what_an_account_lacks_is_named_with_the_role_that_holds_it(clinic: Clinic) -> None:
    look = clinic.look(
        session=clinic.as_("viewer@example.com", "roles/tpu.viewer", "roles/storage.objectViewer")
    )
    lacking = of(look, "permissions")
    assert {item.state for item in lacking} == {MISSING}
    tpu, usage = lacking[:2]
    assert [item.fix.rpartition("/")[2] for item in lacking] == [
        "tpu.admin", "serviceusage.serviceUsageConsumer", "logging.viewer", "compute.osAdminLogin",
        "iap.tunnelResourceAccessor",
    ]  # fmt: skip
    assert "tpu.nodes.create, tpu.nodes.delete, tpu.nodes.update (roles/tpu.admin holds it)" in tpu.detail
    assert tpu.fix.endswith("--role=roles/tpu.admin")
    assert "serviceusage.quotas.get" in usage.detail
    (bucket,) = of(look, "bucket")
    assert "storage.objects.create, storage.objects.delete (roles/storage.objectUser" in bucket.detail
    assert of(look, "host account")[0].state == MISSING
    (quota,) = of(look, "quota")
    assert (quota.state, "permission (serviceusage.quotas.get)" in quota.detail) == (UNKNOWN, True)
    assert of(look, "zone us-east5-b")[0].state == OK


def test_a_bucket_that_is_not_there(clinic: Clinic) -> None:
    look = clinic.look(settings(**{"storage:bucketName": "nobodys-bucket"}))
    assert of(look, "bucket")[0].state == MISSING
    assert of(look, "bucket")[0].fix == "tpu up dev storage"
    assert of(look, "bundle")[0].state == MISSING


def test_a_first_bundle_is_published_by_the_first_up(clinic: Clinic) -> None:
    (bundle,) = of(clinic.look(settings(**{"tpu:bundle": ""})), "bundle")
    assert (bundle.state, bundle.fix) == (
        MISSING, "tpu up dev, which publishes it once its bucket is there",
    )  # fmt: skip


def test_a_start_up_script_that_an_update_would_refuse(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(clinic.look(), "bundle")[0].state == OK
    monkeypatch.setattr(startup, "script_sha256", lambda: "ef" * 32)
    (bundle,) = of(clinic.look(), "bundle")
    assert (bundle.state, bundle.fix) == (MISSING, "tpu publish dev")
    script = bundle_blob("ef" * 32)
    assert (
        bundle.detail == f"tpu:bundle: this checkout's start-up script, gs://{BUCKET}/{script} does not exist"
    )


def test_a_zone_without_v6e(clinic: Clinic) -> None:
    slices = [{"name": "train", "acceleratorType": "v6e-16", "zones": ["us-east5-c"]}]
    look = clinic.look(
        settings(**{"tpu:slices": json.dumps(slices), "tpu:additionalZones": '["us-east5-c"]'})
    )
    assert [item.state for item in of(look, "zone us-east5-c")] == [MISSING, MISSING]
    assert "v6e-16" in of(look, "zone us-east5-c")[0].detail
    assert "us-east5-b" in of(look, "zone us-east5-c")[0].fix


def test_where_a_slice_may_be_moved_is_looked_at_too(clinic: Clinic) -> None:
    slices = [
        {
            "name": "x",
            "acceleratorType": "v6e-16",
            "zones": ["us-east5-a"],
            "count": 1,
            "fallbackZones": ["us-east1-d"],
        }
    ]
    clinic.cloud.quotas.set("TPUV6EPerProjectPerZoneForTPUAPI", "us-east1-d", 8)
    target = settings(**{"tpu:slices": json.dumps(slices), "storage:allowCrossRegion": "true"})
    look = clinic.look(target)
    assert of(look, "zone us-east1-d")[0].state == OK
    assert states(look) == {"quota us-east1-d": OPTIONAL}
    assert "a slice that is moved here needs 16 on-demand chips" in of(look, "quota us-east1-d")[0].detail
    assert healthy(look)


def test_a_cloud_that_answers_nothing_is_unknown_and_no_crash(clinic: Clinic) -> None:
    clinic.cloud.faults.add({"match": {"host": "*"}, "what": {"status": 503}})
    session = clinic.as_(OWNER)
    look = clinic.look(session=session)
    assert clinic.cloud.faults.report()[-1]["observed"] > 10
    # Of what its stack and the settings' files hold, Google isn't asked.
    local = ("names", "conflicts storage")
    items = [item for item in look if not item.what.startswith("stack") and item.what not in local]
    assert {item.state for item in items} == {UNKNOWN}
    assert not healthy(look)
    assert re.search(r"\d+ unknown: login, APIs", format_report(look))


def test_one_question_without_an_answer_hides_no_other(clinic: Clinic) -> None:
    match = {"method": "serviceusage.services.consumerQuotaMetrics.list"}
    clinic.cloud.faults.add({"match": match, "what": {"status": 503}})
    assert states(clinic.look()) == {"quota": UNKNOWN}


def test_pulumi_without_a_login_is_unknown(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.Pulumi, "broken", "`pulumi stack` of storage failed: error: no login")
    look = clinic.look()
    requested = [f"{what} {layer}" for what in ("stack", "conflicts") for layer in LAYERS if layer not in OFF]
    assert states(look) == dict.fromkeys(requested, UNKNOWN)
    assert of(look, "stack data")[0].fix.startswith("pulumi login")


def test_what_a_killed_pulumi_left_is_named_with_the_command(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = "a `pulumi` was killed while creating Network tpu-training"
    monkeypatch.setattr(checks, "unsettled", lambda _, layer: [left] if layer == "network" else [])
    look = clinic.look()
    assert states(look) == {"stack network": MISSING}
    (item,) = of(look, "stack network")
    assert (item.detail, item.fix) == (left, "tpu infra settle dev network")


def test_what_is_at_google_without_the_stack_is_named(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks.Pulumi, "down", OFF | {"storage"})
    network = {"name": "tpu-training", "autoCreateSubnetworks": False}
    url = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}/global/networks"
    assert clinic.session(TOKEN).post(url, json=network).ok
    look = clinic.look()
    assert clinic.session(TOKEN).delete(f"{url}/tpu-training").ok
    unheld = [item for item in look if item.what.startswith("conflicts") and item.state != OK]
    named = [item.detail.partition(" ")[0] for item in unheld]
    assert named[:2] == [BUCKET, f"{BUCKET}-steps"]
    assert [item.rpartition("/")[2].partition("@")[0] for item in named[2:]] == ["tpu-training"] * 2
    assert [finding.fix for finding in of(look, "conflicts storage")[:2]] == [
        f"storage:{key}: true, then tpu up dev storage" for key in ("importBucket", "importStepsBucket")
    ]
    assert of(look, "conflicts network")[0].fix.startswith("import it, or rename; delete it only if no other")
    assert all(item.fix for item in look if item.state == MISSING)


def test_a_layer_that_is_off_is_not_mentioned(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.Pulumi, "down", OFF | {"data"})
    look = clinic.look(settings(**{"data:snapshot": ""}))
    assert not of(look, "stack data")
    assert not of(look, "conflicts data")
    assert states(look) == {}
    assert healthy(look)


def test_what_is_left_of_a_layer_that_was_turned_off_is_named(clinic: Clinic) -> None:
    (item,) = of(clinic.look(settings(**{"data:snapshot": ""})), "stack data")
    assert (item.state, item.fix.rpartition(": ")[2]) == (OPTIONAL, "tpu down dev data")
    assert item.detail.startswith("holds ")


def test_a_controller_at_work_is_named_and_so_is_what_it_waits_for(clinic: Clinic) -> None:
    held = Refusal(1, 0.0, "quota: …", "quota: Quota limit 'X' has been exceeded")
    store = BucketStore(clinic.google(), mine.OWNER.stack)
    store.read()
    store.write(
        ControllerState(refusals={"us-east5-b": held, "us-east5-a": Refusal(2, 0.0, "", "stock-out")})
    )
    look = clinic.look()
    assert re.match(r"one on \S+, its lease renewed \d+ s ago", of(look, "controller")[0].detail)
    assert states(look) == {"held us-east5-b": MISSING}
    assert of(look, "held us-east5-b")[0].detail == held.why


def test_orphans_are_of_this_stack_and_in_no_ad_hoc_fleet(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def node(number: int, **labels: str) -> ObservedNode:
        return ObservedNode(f"n-{number}", "us-east1-d", "READY", labels={**mine.OURS, **labels})

    nodes = [
        node(0), node(1, stack="another"), node(2, fleet="adhoc", member="0"),
        node(3, environment="prod"), ObservedNode("train", "us-east5-b", "READY", labels=mine.OWNER.labels),
    ]  # fmt: skip
    monkeypatch.setattr(Google, "all_nodes", lambda _: nodes)
    AdHoc(clinic.google(), mine.OWNER.stack).keep("adhoc", {"name": "adhoc"})
    own, foreign = of(clinic.look(), "orphans")
    assert (own.state, foreign.state) == (OPTIONAL, OPTIONAL)
    assert "n-0 in us-east1-d, READY: orphaned, and billed" in own.detail
    assert own.fix == "tpu fleet delete dev --orphans"
    assert "n-1 in us-east1-d, READY: of another stack, another" in foreign.detail

    def unreached(_: Google) -> list[ObservedNode]:
        raise RequestError(Failure(Kind.UNKNOWN, "us-east5-a can't be reached"))

    monkeypatch.setattr(Google, "all_nodes", unreached)
    (result,) = of(clinic.look(), "orphans")
    assert result.state == UNKNOWN


def test_the_command_prints_json_and_fails_where_something_is_missing(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = clinic.session(TOKEN)
    monkeypatch.setattr(observing, "from_file", lambda _: settings())
    monkeypatch.setattr(observing, "google_of", lambda _: clinic.google(session))
    assert fleet(["doctor", "dev", "--json"]) == 0
    assert {"what": "login", "state": "ok", "detail": OWNER, "fix": ""} in json.loads(capsys.readouterr().out)
    clinic.cloud.quotas.set("TPUV6EPerProjectPerZoneForTPUAPI", "us-east5-b", 0)
    assert fleet(["doctor", "dev", "--zones", "us-east5-a"]) == 0
    assert fleet(["doctor", "dev"]) == 1
    assert "1 missing: quota us-east5-b" in capsys.readouterr().out


def test_the_cpus_that_a_batch_of_the_pipeline_may_use(clinic: Clinic) -> None:
    code = {"pipeline:rawBucketName": "my-project-raw", "pipeline:code": "0" * 64}
    on = settings(**code, **{"pipeline:maxExecutors": "10", "pipeline:minExecutors": "2"})

    def cpus() -> Finding:
        (result,) = [item for item in of(clinic.look(on), "quota us-east5") if "CPUS" in item.detail]
        return result

    used = 4 + 10 * 4
    assert (cpus().state, cpus().detail) == (
        OK, f"CPUS-per-project-region: a batch of the pipeline uses at most {used} CPUs, allowed are 8192"
    )  # fmt: skip
    clinic.cloud.quotas.set("CPUS-per-project-region", "us-east5", used)
    assert cpus().state == OK
    clinic.cloud.quotas.set("CPUS-per-project-region", "us-east5", used - 1)
    assert cpus().state == MISSING
    assert "--service=compute.googleapis.com --quota-id=CPUS-per-project-region" in cpus().fix
    assert f"--preferred-value={used}" in cpus().fix
