"""Every setting of every layer changed, one at a time, and back: the plan's word is what happens.

A change is made by the real CLI in the emulated cloud. Its plan names resources with `create`, `update`,
`replace` or `delete`; the update must do that and nothing else, and a preview after it, with a refresh, must
be empty. The change back must touch the same resources. A last preview, with a refresh, must be empty too.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

from google_facts.agents import AGENTS
from infra.catalog import CATALOG
from infra.engine.registry import layers, section_classes
from infra.layers.tpu import startup
from infra.settings.schema import keys_of, records
from infra.slices.names import bundle_blob, bundle_manifest
from tests.emulated import NUMBER
from tests.infra.lab import PROJECT, Lab
from tests.infra.settings.mutants import FULL, Mutant, Values, Where, _get, _put, judged
from tests.proofs import opened
from tests.proofs.others import OTHER_BUNDLE, OTHER_IMAGE, OTHERS
from tests.proofs.warm import Warm

LAYERS = tuple(layer.name for layer in layers() if layer.name != "queue")  # which needs a control plane
_DAY_S = 86400.0
_LEFT_OUT = ("monitoring:billingAccount", "monitoring:budgetPerMonth")
"""What needs a billing account in which the lab's owner may make budgets."""
_STAYING = ("gke:securityGroup",)
"""What the provider keeps when its setting goes (`expandAuthenticatorGroupsConfig` never disables)."""
_GROWING = ("slurm:stateDiskGib", "slurm:filestoreGib")
"""What is refused smaller: the disk of the state in the plan, a basic tier's share by Google."""
_HELD = {"gcp:project": PROJECT, "data:snapshot": "corpus"}
"""Values of things outside the settings, which the lab has."""


@dataclass(frozen=True)
class Case:
    """A change and the change back.

    Attributes:
        setting: the path that was changed.
        outcome: `update`, `replace`, `create`, `delete` and their mixtures; `nothing`; `refused: WHY`; or
            `refused by rules` of the settings, for each other value that is known.
        wrong: what wasn't as planned; empty where all was.
    """

    layer: str
    setting: str
    old: Any
    new: Any
    outcome: str
    wrong: str
    took_s: float


@dataclass(frozen=True)
class Steps:
    """A plan, or what was done: OPERATION TYPE NAME of each."""

    all: frozenset[str]
    output: str

    @property
    def fine(self) -> bool:
        """False where the command was refused, or failed."""
        return "error:" not in self.output

    @property
    def reason(self) -> str:
        """The errors."""
        return _reason(self.output)

    @property
    def touched(self) -> set[str]:
        """TYPE NAME of the resources."""
        return {step.partition(" ")[2] for step in self.all}


class Changes:
    """A lab in which one layer is up, on those that it reads."""

    def __init__(self, folder: Path, layer: str) -> None:
        self.layer, self._folder = layer, folder
        self._needed = _needed(layer)
        sections = {*self._needed, "gcp", "pulumi", "tpu", "fleet"}
        channels = [item for item in FULL["monitoring:channels"] if "existing" not in item]
        self.values: Values = {**FULL, "monitoring:channels": channels, **_HELD}
        self.values = {
            key: value
            for key, value in self.values.items()
            if key.partition(":")[0] in sections and key not in _LEFT_OUT
        }
        self._begin()

    def _begin(self) -> None:
        """Bring the layers up in a new cloud."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        self.lab = Lab(place)
        self._warm = Warm(place / "bin", place / "home", self.lab.environment)
        # Programs that Google runs are packed with the environment's file, which isn't the checkout's here.
        self._patched = ExitStack()
        self._patched.enter_context(mock.patch("infra.core.packed.path_of", return_value=self.lab.settings))
        images = (CATALOG.default_runtime, OTHER_IMAGE)
        self._patched.enter_context(
            mock.patch("rehearsal.cloud.services.tpu.request.RUNTIME_VERSIONS", images)
        )
        # The variable is what --event-log wants.
        self.lab.environment |= {"PATH": self._warm.path, "PULUMI_DEBUG_COMMANDS": "true"}
        for name in self._needed:
            self.lab.pulumi(name, "stack", "init", "dev")
            self._write(self.values)
            plan = self._steps(name, "preview")
            made = self._steps(name, "up", "--yes", "--skip-preview")
            assert plan.fine, plan.output
            assert made.fine, made.output
            assert plan.all == made.all, plan.all ^ made.all
            if name == "storage":
                self._publish()
                self._authorize_key()
            elif name == "network":
                self._add_subnet()

    def close(self) -> None:
        """End the lab."""
        self._patched.close()
        self._warm.close()
        self.lab.close()

    def settings(self) -> Iterator[tuple[str, Where, Any]]:
        """Yield the layer's settings: path, place and present value, the default where none is given."""
        kind = section_classes().get(self.layer)
        if kind is None:
            return
        nested = records(kind)
        for key, item in keys_of(kind).items():
            path = f"{self.layer}:{key}"
            if key not in nested:
                yield path, (path,), self.values.get(path, item.default)
                continue
            for number, entry in enumerate(self.values.get(path, ())):
                for inner, about in keys_of(nested[key]).items():
                    yield f"{path}[{number}].{inner}", (path, number, inner), entry.get(inner, about.default)

    def cases(self, only: Sequence[str]) -> Iterator[Case]:
        """Change every setting, or only some."""
        for path, where, value in self.settings():
            if path not in _HELD and (not only or path in only):
                yield self.case(path, where, value)

    def case(self, path: str, where: Where, value: Any) -> Case:
        """Change one setting to the first other value whose plan isn't refused, and change it back."""
        begun = time.monotonic()
        plan, other = None, None
        for other in self._others(path, where, value):
            self._write(other)
            if (plan := self._steps(self.layer, "preview")).fine:
                break
        if plan is None or other is None:
            return Case(self.layer, path, _shown(value), None, "refused by rules", "", 0.0)
        wrong, outcome = [], f"refused: {plan.reason}"
        if plan.fine:
            update = self._steps(self.layer, "up", "--yes", "--skip-preview")
            outcome = _outcome(update)
            wrong = _as_planned(plan, update)
            wrong += [f"the next preview isn't empty: {what}" for what in self.left() if update.fine]
            # A disk's speed changes once in some hours.
            self.lab.call(self.lab.cloud.world.clock.jump(_DAY_S))
            wrong += [f"back: {fault}" for fault in self._back(update, path)]
        if "Traceback" in plan.output:
            wrong.append("a traceback")
        self._write(self.values)
        took_s = round(time.monotonic() - begun, 1)
        return Case(self.layer, path, _shown(value), _get(other, where), outcome, "; ".join(wrong), took_s)

    def _back(self, update: Steps, path: str) -> list[str]:
        """Change back; where that isn't possible, or the change stays, another lab is as new."""
        stays, grows = path in _STAYING, path in _GROWING
        self._write(self.values)
        plan = self._steps(self.layer, "preview")
        back = self._steps(self.layer, "up", "--yes", "--skip-preview") if plan.fine else plan
        wrong = ["it shrank"] * back.fine if grows else _as_planned(plan, back)
        if back.fine and not update.fine:
            wrong += self.left()
        if not wrong and update.fine and update.touched != back.touched and not stays and not grows:
            wrong.append(f"changed {sorted(update.touched)}, and back {sorted(back.touched)}")
        if wrong or stays or grows:
            self.close()
            self._begin()
        return wrong

    def left(self) -> list[str]:
        """Return what a preview with a refresh still shows."""
        output = self._pulumi(self.layer, "preview", "--refresh", "--expect-no-changes")
        return [_reason(output)] if "error:" in output else []

    def _others(self, path: str, where: Where, value: Any) -> Iterator[Values]:
        """Yield settings with another value that the schema and its rules accept."""
        for other in _candidates(path, value):
            inner: Any = self.values
            for part in where[:-1]:
                inner = inner[part]
            known = where[-1] in inner if isinstance(inner, dict) else True
            changed = _put(self.values, where, other) if known else _added(self.values, where, other)
            if other != value and not judged(Mutant(changed, "", (where,)), self._folder):
                yield changed

    def _steps(self, layer: str, *arguments: str) -> Steps:
        """Run a command; only a preview of its own logs the steps of an update's plan."""
        events = self._folder / "events"
        events.unlink(missing_ok=True)
        output = self._pulumi(layer, *arguments, "--event-log", str(events))
        return Steps(_logged([json.loads(line) for line in events.read_text().splitlines()]), output)

    def _pulumi(self, layer: str, *arguments: str) -> str:
        return self.lab.run(*self.lab.line(layer, *arguments, "-s", "dev"), fine=None)

    def _add_subnet(self) -> None:
        """Make a subnet with secondary ranges, as `gke:existingSubnet` demands."""
        ranges = {"pods": "10.71.0.0/20", "services": "10.72.0.0/20"}
        body = {
            "name": "other",
            "network": f"projects/{PROJECT}/global/networks/{self.values['network:name']}",
            "ipCidrRange": "10.70.0.0/20",
            "secondaryIpRanges": [{"rangeName": name, "ipCidrRange": cidr} for name, cidr in ranges.items()],
        }
        url = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/regions/us-east5/subnetworks"
        assert self.lab.request("POST", url, body).ok

    def _authorize_key(self) -> None:
        """Make the other key, and let Cloud Storage use it, as `storage:kmsKey` demands."""
        ring = f"projects/{PROJECT}/locations/us-east5/keyRings"
        url = f"cloudkms.googleapis.com/v1/{ring}"
        key = {"purpose": "ENCRYPT_DECRYPT"}
        assert self.lab.request("POST", url, {}, keyRingId="other").ok
        assert self.lab.request("POST", f"{url}/other/cryptoKeys", key, cryptoKeyId="other").ok
        # Whoever reads its address makes the agent.
        account = f"storage.googleapis.com/storage/v1/projects/{PROJECT}/serviceAccount"
        assert self.lab.request("GET", account).ok
        role, agent = "roles/cloudkms.cryptoKeyEncrypterDecrypter", AGENTS["storage"].email(NUMBER)
        self.lab.grant(f"{ring}/other/cryptoKeys/other", role, f"serviceAccount:{agent}")

    def _write(self, values: Values) -> None:
        """Write settings, and keep the CLI's salt, or each command would make another in a packed file."""
        lines = [f"  {key}: {json.dumps(value)}\n" for key, value in values.items()]
        known = self.lab.settings.read_text().splitlines(keepends=True)
        lines += [line for line in known if line.startswith("encryptionsalt:")]
        self.lab.settings.write_text(f"config:\n{''.join(lines)}")

    def _publish(self) -> None:
        url = f"storage.googleapis.com/upload/storage/v1/b/{self.values['storage:bucketName']}/o"
        bundles = (str(self.values["tpu:bundle"]), OTHER_BUNDLE)
        for name in (*map(bundle_manifest, bundles), bundle_blob(startup.script_sha256())):
            assert self.lab.request("POST", url, b"", uploadType="media", name=name).ok


def _needed(layer: str) -> list[str]:
    """Return a layer and all that it may read, in their order."""
    needs = {item.name: item.needs for item in layers()}
    known, waiting = {layer}, [layer]
    while waiting:
        for name in set(needs[waiting.pop()]) - known:
            known.add(name)
            waiting.append(name)
    return [item.name for item in layers() if item.name in known]


def _candidates(path: str, value: Any) -> Iterator[Any]:
    """Yield other values: of the table, or of the same type."""
    key = path.rpartition(".")[2].rpartition(":")[2]
    for end, others in OTHERS.items():
        if key == end or (end[:1].isupper() and key.endswith(end)):
            yield from others
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value * 2, value - 1, value / 2, value // 2)
    elif isinstance(value, str):
        yield from (f"{value}-b", f"{value} b", f"{value}b")
    else:
        yield from (True, False, 3600, 30)


def _added(values: Values, where: Where, value: Any) -> Values:
    """Return a copy with a key that it hasn't."""
    return _put(_with(values, where), where, value)


def _with(values: Values, where: Where) -> Values:
    copied: Values = json.loads(json.dumps(values))
    inner: Any = copied
    for part in where[:-1]:
        inner = inner[part]
    inner[where[-1]] = None
    return copied


def _logged(events: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return OPERATION TYPE NAME of all steps but those that leave a resource as it is."""
    result = set()
    for event in events:
        if step := event.get("resOutputsEvent"):
            about = step["metadata"]
            kind, label = about["type"], about["urn"].rpartition("::")[2]
            if about["op"] not in ("same", "read", "refresh") and not kind.startswith("pulumi:pulumi:"):
                result.add(f"{about['op']} {kind} {label}")
    return frozenset(result)


def _as_planned(plan: Steps, update: Steps) -> list[str]:
    if not update.fine:
        return [update.reason]
    more, less = sorted(update.all - plan.all), sorted(plan.all - update.all)
    return [f"planned and not done: {less}; not planned: {more}"] if more or less else []


def _outcome(update: Steps) -> str:
    if not update.fine:
        return f"refused: {update.reason}"
    words = sorted({step.partition(" ")[0] for step in update.all})
    return " ".join(words) or "nothing"


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    changed = [
        line
        for line in lines
        if line[:2].strip() in ("~", "+", "-", "+-")
        and "pulumi:pulumi" not in line
        and not line.endswith(("refresh", "refreshing"))
    ]
    return " | ".join(dict.fromkeys([*errors, *changed[:6]]))[:500]


def _shown(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | list | dict) else None


def rows(cases: Sequence[Case]) -> dict[str, Any]:
    """Return counts of outcomes, and the cases in which something wasn't as planned."""
    counts: dict[str, int] = {}
    for case in cases:
        word = case.outcome.partition(":")[0]
        counts[word] = counts.get(word, 0) + 1
    names = [item.name for item in fields(Case)]
    return {
        "settings": len(cases),
        "outcomes": dict(sorted(counts.items())),
        "wrong": [{name: getattr(case, name) for name in names} for case in cases if case.wrong],
    }


def measure(
    names: Sequence[str], only: Sequence[str], report: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Change the settings of layers, or only some of them."""
    result = {}
    for layer in names or dict.fromkeys(path.partition(":")[0] for path in only) or LAYERS:
        begun, cases = time.monotonic(), []
        with opened(Changes, layer) as changes:
            for case in changes.cases(only):
                cases.append(case)
                what = f"{case.setting}: {case.old!r} -> {case.new!r}: {case.outcome}"
                report(f"{what} {case.wrong} {case.took_s} s")
            left = changes.left()
        result[layer] = {**rows(cases), "left": left, "took_s": round(time.monotonic() - begun, 1)}
    return result
