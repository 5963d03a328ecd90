"""1,000 mutants of good settings; what is accepted goes up, under mocks and in the emulated cloud."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra.core.environment import layers_on
from infra.engine.settings import from_file
from infra.layers.tpu import startup
from infra.slices.names import bundle_blob, bundle_manifest
from tests.infra.lab import PROJECT, Lab
from tests.infra.settings.mutants import Mutant, Values, judged, merged, missing, mutants, refused_by_up
from tests.proofs import opened

# What these name is outside the settings, and isn't there: only mocks take them.
OUTSIDE = frozenset({"gcp:project", "data:snapshot"})


def measure(count: int, seed: int, report: Callable[[str], None]) -> dict[str, Any]:
    """A table of kinds and outcomes, and the changes that went up. Raises SystemExit where one is wrong."""
    table, wrong = Counter[str](), list[str]()
    accepted: dict[tuple[str, str, str], Mutant] = {}
    with tempfile.TemporaryDirectory(prefix="proof-") as name:
        folder = Path(name)
        for mutant in mutants(count, seed):
            if unnamed := missing(mutant, output := judged(mutant, folder)):
                wrong.append(f"{mutant.kind} of {mutant.label}: {unnamed} isn't among {output}")
            outcome = "wrong" if unnamed else "refused" if output else "accepted"
            if outcome == "accepted" and (refusal := refused_by_up(mutant.values)):
                outcome = "refused by up"
                if "fix: " not in refusal:
                    outcome, wrong = "wrong", [*wrong, f"{mutant.label}: {refusal}"]
            elif outcome == "accepted":
                accepted[mutant.of, mutant.kind, mutant.label] = mutant
            table[f"{mutant.kind}: {outcome}"] += 1
        report(f"{count} mutants, {len(wrong)} wrong; {len(accepted)} kinds of change are accepted")
        inside = [item for item in accepted.values() if OUTSIDE.isdisjoint(where[0] for where in item.where)]
        up = _up(merged(inside, folder), report)
    if wrong:
        raise SystemExit("\n".join(wrong))
    changes = sorted({f"{item.of}: {item.kind} {item.label}" for item in accepted.values()})
    return {"seed": seed, "table": dict(sorted(table.items())), "accepted": changes, "up": up}


def _up(files: Sequence[Mutant], report: Callable[[str], None]) -> dict[str, int]:
    """Brings each file up in an emulated cloud of its own; what fails is raised."""
    changes = 0
    for number, item in enumerate(files, 1):
        with opened(Lab) as lab:
            _bring_up(lab, item.values)
        changes += len(item.where)
        report(f"up {number}/{len(files)}: {item.of} with {item.label}")
    return {"files": len(files), "changes": changes}


def _bring_up(lab: Lab, values: Values) -> None:
    mapping = {"gcp:project": PROJECT, **({"data:snapshot": "corpus"} if values.get("data:snapshot") else {})}
    lines = (f"  {key}: {json.dumps(value)}\n" for key, value in {**values, **mapping}.items())
    lab.settings.write_text(f"config:\n{''.join(lines)}")
    lab.infra("up", "dev", "storage", "--yes", "--skip-preview")
    url = f"storage.googleapis.com/upload/storage/v1/b/{values['storage:bucketName']}/o"
    bundle = bundle_manifest(str(values["tpu:bundle"]))
    for name in (bundle, bundle_blob(startup.script_sha256())):
        assert lab.request("POST", url, b"", uploadType="media", name=name).ok
    lab.infra("up", "dev", "--after", "storage", "--yes", "--skip-preview")
    for layer in layers_on(from_file("dev", lab.root)):
        lab.pulumi(layer.name, "preview", "-s", "dev", "--expect-no-changes")
