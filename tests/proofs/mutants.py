"""Mutants by cosmic-ray, a sample of each area, tried by the tests that mirror it in a copy of the tree.

An operator that gives equivalent mutants as a rule (identity for equality, other numbers) is left out.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rehearsal.world.checkout import copy_program

ROOT = Path(__file__).parents[2]
DECLARED = Path(__file__).with_name("survivors.toml")
CLOUD, LAYERS = "tests/rehearsal/cloud", "tests/infra/layers"
AREAS: Mapping[str, Sequence[str]] = {
    "rehearsal/cloud/iam": (f"{CLOUD}/test_iam.py", f"{CLOUD}/test_customroles.py"),
    "rehearsal/cloud/collections": (f"{CLOUD}/test_collections.py", f"{CLOUD}/test_entry_rules.py"),
    "rehearsal/cloud/services/storage": (f"{CLOUD}/storage",),
    "rehearsal/cloud/services/compute": (f"{CLOUD}/test_compute.py", f"{CLOUD}/test_vpc.py"),
    "rehearsal/cloud/services/tpu": (f"{CLOUD}/test_tpu.py", f"{CLOUD}/test_tpu_life.py"),
    **{
        f"infra/layers/{layer}": (f"{LAYERS}/{layer}", f"{LAYERS}/test_all_layers.py")
        for layer in ("data", "gke", "monitoring", "network", "pipeline", "queue", "storage")
    },
    "infra/policy": ("tests/infra/policy/test_policy.py",),
    "infra/settings": ("tests/infra/settings",),
    "fleet/decide.py": (
        "tests/fleet/test_decide.py",
        "tests/fleet/test_budgets.py",
        "tests/fleet/test_zones.py",
        "tests/fleet/test_proof.py",
    ),
    "workload/data": ("tests/workload/test_tokens.py", "tests/workload/test_order.py"),
}
"""Tests by the folder or file that they are asked about."""

_OPERATORS = re.compile(
    r"core/(AddNot|ReplaceTrueWithFalse|ReplaceFalseWithTrue|ReplaceAndWithOr|ReplaceOrWithAnd|ZeroIterationForLoop"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|RemoveDecorator|ExceptionReplacer"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul))"
)


@dataclass(frozen=True)
class Mutant:
    """Change of a line: `outcome` is cosmic-ray's, "KILLED" or "SURVIVED"."""

    path: str
    line: str
    operator: str
    outcome: str


def measure(item: int, seed: int, areas: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
    """Try up to `each` mutants of each area.

    Raises:
        SystemExit: the tests of an area fail without a mutant.
    """
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    survivors: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        copy_program(tree, ROOT)
        (tree / ".venv").symlink_to((ROOT / ".venv").resolve())
        for area in areas or AREAS:
            for mutant in _tried(area, tree, Path(folder), item, seed):
                counts[mutant.outcome] += 1
                key = {"path": mutant.path, "line": mutant.line, "operator": mutant.operator}
                if mutant.outcome == "SURVIVED" and key not in declared():
                    survivors.append(key)
                    report(f"survived: {mutant.path}: {mutant.operator}: {mutant.line}")
    return {"seconds": round(time.monotonic() - begun), "outcomes": dict(counts), "survived": survivors}


def declared() -> list[dict[str, str]]:
    """Return the survivors that are known: equivalent mutants, each with its reason in survivors.toml."""
    entries = tomllib.loads(DECLARED.read_text()).get("survivor", [])
    return [{key: entry[key] for key in ("path", "line", "operator")} for entry in entries]


def _tried(area: str, tree: Path, folder: Path, item: int, seed: int) -> Iterator[Mutant]:
    config, session = folder / "config.toml", folder / f"{area.replace('/', '-')}.sqlite"
    tests = " ".join(AREAS[area])
    command = f".venv/bin/python -m pytest -x -q -p no:cacheprovider {tests}"
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(area)}\ntimeout = 300.0\nexcluded-modules = []\n"
        f'test-command = {json.dumps(command)}\n[cosmic-ray.distributor]\nname = "local"\n'
    )
    environment = subprocess.run(
        ["tools/setup.sh", "mutants"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    program = environment.stdout.splitlines()[-1]

    def run(*arguments: str) -> None:
        done = subprocess.run([program, *arguments], cwd=tree, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"cosmic-ray {arguments[0]} of {area}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )

    run("baseline", str(config))
    run("init", str(config), str(session))
    with closing(sqlite3.connect(session)) as database, database:
        rows = database.execute("select job_id, operator_name from mutation_specs order by job_id").fetchall()
        jobs = [job for job, operator in rows if _OPERATORS.fullmatch(operator)]
        kept = set(random.Random(seed).sample(jobs, min(item, len(jobs))))
        for table in ("mutation_specs", "work_items"):
            database.executemany(
                f"delete from {table} where job_id = ?", [(job,) for job, _ in rows if job not in kept]
            )
    run("exec", str(config), str(session))
    with closing(sqlite3.connect(session)) as database:
        columns = "module_path, start_pos_row, operator_name, test_outcome"
        query = f"select {columns} from mutation_specs join work_results using (job_id)"
        for path, row, operator, outcome in database.execute(query).fetchall():
            yield Mutant(path, (tree / path).read_text().splitlines()[row - 1].strip(), operator, outcome)
