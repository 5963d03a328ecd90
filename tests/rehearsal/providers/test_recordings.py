"""The stand-in sends what the official provider was recorded to send: every type, every phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rehearsal.providers.gcp import sdk
from rehearsal.providers.gcp.provider import Provider
from rehearsal.providers.gcp.types import TYPES
from rehearsal.providers.plugin.errors import StandInError
from tests.rehearsal.providers.replay import RECORDINGS, Google, Recording, Request, google, load, momentless

# Recordings that show all requests on something shared: their resources are replayed together.
TOGETHER = {
    "storage.BucketIAMMember": ("storage.BucketIAMMember", "storage.BucketIAMMember.conditional"),
    "serviceaccount.IAMMember": ("serviceaccount.IAMMember", "serviceaccount.IAMMember.workloadIdentity"),
    "projects.IAMMember": ("projects.IAMMember", "projects.IAMMember.replaced"),
    "projects.Service": ("projects.Service", "projects.Service.disable_on_destroy"),
}
# Recordings of errors, which tests/rehearsal/providers/test_faults.py replays.
FAULTS = {"tpu.V2Vm.createFailed", "tpu.V2Vm.rejectedBothAccelerators", "tpu.V2Vm.faults"}
ALL = {f.stem: load(f.stem).token for f in RECORDINGS.glob("*.json")}
ALONE = sorted(ALL.keys() - FAULTS - {n for g in TOGETHER.values() for n in g})


# Recordings that hold what a neighbour asked, too. Of these, the requests that change something are compared,
# and the outputs that the program gave as inputs: of a cluster's other hundreds nothing of ours reads any.
NEIGHBOURS = {"container.Cluster", "container.NodePool", "container.NodePool.cpu"}


class Resource:
    """A resource on its way through the phases, as the engine would lead it."""

    def __init__(self, provider: Provider, recording: Recording) -> None:
        self.provider = provider
        self.recording = recording
        self.id = ""
        self.inputs: dict[str, Any] = {}
        self.state: dict[str, Any] = {}

    def checked(self, key: str) -> dict[str, Any]:
        """Recorded inputs without their defaults, which checking must fill in again."""
        recorded = self.recording.content[key] or self.recording.content["inputs"]
        named = (
            {"name": recorded.get("name"), "__defaults": ["name"]} if "name" in recorded["__defaults"] else {}
        )
        name = self.recording.content["resourceName"]
        checked = self.provider.check(self.recording.token, without_defaults(recorded), named, name, b"")
        assert checked.failures == []
        assert checked.inputs == recorded
        return checked.inputs

    def create(self) -> None:
        self.inputs = self.checked("inputs")
        self.id, self.state = self.provider.create(self.recording.token, self.inputs)

    def up(self, key: str) -> list[str]:
        """Update a resource as `pulumi up` does; return the paths that differed."""
        inputs = self.checked(key)
        change = self.provider.diff(self.recording.token, self.state, inputs, before=self.inputs)
        if change.replaces:
            changes = [r["method"] for r in self.recording.content["requests"] if r["phase"] == "update"]
            if change.delete_first or changes[:1] == ["DELETE"]:  # or the program asked for it
                self.delete()
                self.id, self.state = self.provider.create(self.recording.token, inputs)
            else:
                old_id, old = self.id, self.state
                self.id, self.state = self.provider.create(self.recording.token, inputs)
                self.provider.delete(self.recording.token, old_id, old)
        elif change.differences:
            self.state = self.provider.update(
                self.recording.token, self.id, self.state, inputs, before=self.inputs
            )
        self.inputs = inputs
        return [d.path for d in change.differences]

    def refresh(self) -> None:
        result = self.provider.read(self.recording.token, self.id, self.state)
        assert result is not None
        self.state = result

    def delete(self) -> None:
        self.provider.delete(self.recording.token, self.id, self.state)


def without_defaults(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        skipped = {"__defaults", *inputs.get("__defaults", ())}
        return {key: without_defaults(value) for key, value in inputs.items() if key not in skipped}
    return [without_defaults(item) for item in inputs] if isinstance(inputs, list) else inputs


def replayed(played: Google, window_s: float = 0.05) -> Provider:
    provider = Provider(poll_s=0.001, window_s=window_s, first_backoff_s=0.001)
    special = played.recording.name == "tpu.V2Vm.defaultLabels"
    labels = {"env": "dev", "managed-by": "pulumi"} if special else {}
    provider.configure(played.settings(default_labels=labels, attribution=not special))
    return provider


@pytest.mark.parametrize("name", ALONE)
def test_requests_are_the_recorded_ones(name: str) -> None:
    with google(load(name)) as played:
        resource = Resource(replayed(played), played.recording)
        content = played.recording.content
        is_refused = any(r["status"] == 409 for r in content["requests"])
        stable = is_refused or not played.recording.requests("noop")
        played.phase = "create"
        resource.create()
        assert momentless(resource.id) == momentless(played.recording.content["id"])
        recorded = played.recording.content["outputs"]
        if name in NEIGHBOURS:
            recorded = within(recorded, content["inputs"])
            assert len(recorded) > 5
        own = within(resource.state, content["inputs"]) if name in NEIGHBOURS else resource.state
        assert differing_outputs(resource.recording.token, own, recorded) == {}
        played.phase = "noop"
        assert (resource.up("inputs") == []) is stable
        if "NodePool" not in name:  # the official provider reads all pools of a cluster by one list
            played.phase = "refresh"
            resource.refresh()
        played.phase = "noop"
        assert (resource.up("inputs") == []) is stable
        after = "inputsAfterUpdate" if "inputsAfterUpdate" in played.recording.content else "inputs"
        if is_refused:
            content["inputs"]["labels"] = {"env": "prod"}  # by its requests: the new inputs weren't kept
            for phase in ("update", "noop"):  # each `up` tries again
                played.phase = phase
                with pytest.raises(StandInError, match="Error 409"):
                    resource.up(after)
        elif "update" in {r["phase"] for r in played.recording.content["requests"]}:
            played.phase = "update"
            resource.up(after)
            recorded = played.recording.content.get("outputsAfterUpdate", {})
            if name in NEIGHBOURS:
                recorded = within(recorded, content["inputsAfterUpdate"])
            own = within(resource.state, content[after]) if name in NEIGHBOURS else resource.state
            assert differing_outputs(resource.recording.token, own, recorded, {"updated"}) == {}
            played.phase = "noop"
            assert (resource.up(after) == []) is stable
        played.phase = "delete"
        resource.delete()
    assert played.unexpected == []
    for phase in ("create", "noop", "refresh", "update", "delete"):
        recorded_requests = played.recording.requests(phase)
        if (name, phase) == ("compute.RouterNat", "refresh"):
            recorded_requests.pop()  # the router's own refresh
        items = played.sent[phase]
        if name in NEIGHBOURS:
            assert items or phase in ("noop", "refresh"), phase
            items = [item for item in items if item.method != "GET"]
            recorded_requests = [
                recorded_request for recorded_request in recorded_requests if recorded_request.method != "GET"
            ]
        assert items == recorded_requests, phase


@pytest.mark.parametrize("names", TOGETHER.values(), ids=list(TOGETHER))
def test_requests_on_something_shared_are_the_recorded_ones(names: tuple[str, ...]) -> None:
    recordings = [load(name) for name in names]
    at_once = names[0].startswith("projects.")  # the others are queued, so their order matters
    with google(recordings[0]) as played, ThreadPoolExecutor(2 if at_once else 1) as pool:
        provider = replayed(played, window_s=1.5 if at_once else 0.05)
        resources = [Resource(provider, recording) for recording in recordings]
        for resource in resources:
            resource.checked("inputs")  # what the first check loads takes longer than the window
        played.phase = "create"
        list(pool.map(Resource.create, resources))
        for resource in resources:
            assert resource.id == resource.recording.content["id"]
            assert (
                differing_outputs(
                    resource.recording.token, resource.state, resource.recording.content["outputs"], {"etag"}
                )
                == {}
            )
        played.phase = "noop"
        assert [resource.up("inputs") for resource in resources] == [[], []]
        played.phase = "refresh"
        list(pool.map(Resource.refresh, resources))
        played.phase = "update"
        for resource in resources:
            if resource.recording.content.get("inputsAfterUpdate") != resource.recording.content["inputs"]:
                resource.up(
                    "inputsAfterUpdate" if "inputsAfterUpdate" in resource.recording.content else "inputs"
                )
        played.phase = "delete"
        last_first = names[0] == "storage.BucketIAMMember"
        list(pool.map(Resource.delete, reversed(resources) if last_first else resources))
    assert played.unexpected == []
    for phase in ("create", "noop", "refresh", "update", "delete"):
        assert counted(played.sent[phase]) == counted(recordings[0].requests(phase)), phase


@pytest.mark.parametrize(
    "name",
    [
        "compute.Network",
        "compute.Subnetwork",
        "compute.Router",
        "compute.RouterNat",
        "compute.Firewall",
        "storage.Bucket",
        "serviceaccount.Account",
        "kms.KeyRing",
    ],
)
def test_a_resource_can_be_read_by_its_id_alone(name: str) -> None:
    """As `Network.get(...)` and `pulumi import` do; what is imported needs no change afterwards."""
    with google(load(name)) as played:
        provider, token, id_ = replayed(played), played.recording.token, played.recording.content["id"]
        played.phase = "refresh"
        result = provider.read(token, id_, {})
        assert result is not None
        by_program = {"labels", "pulumiLabels", "forceDestroy"}
        assert differing_outputs(token, result, played.recording.content["outputs"], by_program) == {}
        checked = provider.check(token, provider.inputs_of(token, result), {}, "imported", b"")
        assert checked.failures == []
        found_labels = {"pulumiLabels": result.get("effectiveLabels", {})}
        assert (
            provider.diff(
                token, {**result, **found_labels}, {**checked.inputs, **labels_of(result)}
            ).differences
            == []
        )


def labels_of(result: Mapping[str, Any]) -> dict[str, Any]:
    return {"labels": result["effectiveLabels"]} if result.get("effectiveLabels") else {}


@pytest.mark.parametrize("name", ["storage.BucketIAMMember", "projects.IAMMember"])
def test_a_member_is_imported_by_its_words_and_kept_by_its_id(name: str) -> None:
    with google(load(name)) as played:
        provider, token, content = replayed(played), played.recording.token, played.recording.content
        played.phase = "refresh"
        scope, role, member = (
            content["inputs"][key] for key in ("bucket" if "Bucket" in name else "project", "role", "member")
        )
        result = provider.read(token, f"{scope} {role} {member}", {})
        assert result
        assert (result["id"], result["role"], result["member"]) == (content["id"], role, member)
        assert provider.read(token, f"{scope} {role} user:b", {}) is None
    with pytest.raises(StandInError, match="SCOPE ROLE MEMBER"):
        provider.read(token, content["id"], {})


# Taken from the provider's published source instead.
NOT_RECORDED = {
    "gcp:cloudrunv2/serviceIamMember:ServiceIamMember",
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember",
    "gcp:projects/serviceIdentity:ServiceIdentity",
}


def test_every_type_has_a_recording() -> None:
    assert {*ALL.values(), *NOT_RECORDED} == TYPES.keys()
    assert not NOT_RECORDED & set(ALL.values())


def counted(requests: list[Request]) -> Counter[Request]:
    return Counter(requests)


def differing_outputs(
    token: str,
    own: Mapping[str, Any],
    recorded: Mapping[str, Any],
    ignored: set[str] = frozenset(),  # type: ignore[assignment]
) -> dict[str, Any]:
    """Recorded outputs that ours lack or give otherwise; null, "", 0 and [] are taken for one."""
    known = sdk.resource_type(token).outputs
    return {
        key: (own.get(key), value)
        for key, value in recorded.items()
        if key in known and key not in ignored and not alike(own.get(key), value)
    }


def within(value: Any, given: Any) -> Any:
    """Of a mapping, and of those in it, what `given` has too."""
    if not isinstance(value, Mapping) or not isinstance(given, Mapping):
        return value
    return {key: within(value[key], given[key]) for key in value.keys() & given.keys()}


def _meaning(value: Any) -> str:
    """Return a text that two equal values share: all but what is empty."""
    if isinstance(value, Mapping):
        return str(sorted((key, _meaning(item)) for key, item in value.items() if _meaning(item)))
    return str(value or "")


def alike(own: Any, recorded: Any) -> bool:
    if isinstance(own, Mapping) and isinstance(recorded, Mapping):
        return all(alike(own.get(key), recorded.get(key)) for key in own.keys() | recorded.keys())
    if isinstance(own, list) and isinstance(recorded, list) and len(own) == len(recorded):
        if own != recorded:  # it may be a set: its order is the official provider's hash order
            own, recorded = (sorted(items, key=_meaning) for items in (own, recorded))
        return all(alike(*pair) for pair in zip(own, recorded, strict=True))
    if isinstance(recorded, int) and not isinstance(recorded, bool) and isinstance(own, int):
        return float(own) == float(recorded)
    if isinstance(own, str) and isinstance(recorded, str):
        return momentless(own) == momentless(recorded)
    return own == recorded or (not own and not recorded)
