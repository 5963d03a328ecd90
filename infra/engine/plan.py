"""The plan of an environment: what each layer would change, and what it costs.

Layers that are up are compared with their state. The others are planned against an empty
state in a temporary folder, so a plan writes nothing to anybody's backend and
needs no login to one.
"""

import json
import logging
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.core.environment import layers_on, require_on
from infra.core.layer import directory
from infra.engine import prices, registry
from infra.engine.before import settings_to_apply
from infra.engine.pulumi import Pulumi, sentence
from infra.engine.settings import from_file
from infra.errors import CommandError, InputError, Problem, listed
from infra.google.client import Client, RequestError
from infra.google.failures import Kind, fix_of
from infra.prices.row import NOTE, Cost, PriceRow, Rate, total
from infra.prices.row import cost as cost_of
from infra.prices.table import rates_table, table
from infra.settings import yaml_file
from infra.settings.record import formatting_kept
from infra.settings.schema import Settings
from infra.settings.sources import ROOT
from infra.slices import inputs, preflight
from infra.slices.nodes import nodes
from infra.slices.preflight import Verdict
from infra.slices.settings import TpuSettings
from views.table import aligned
from views.table import markdown as markdown_table

_MAKES = ("create", "replace")
SIGNS = {"create": "+", "update": "~", "replace": "+-", "delete": "-", "import": "="}
"""Signs of Pulumi for resources that it creates, updates, replaces, deletes, or takes over as they are."""

_LOG = logging.getLogger(__name__)
_COUNTED = ("create", "update", "replace", "delete")
_STACK = "pulumi:pulumi:Stack"
_FROM_PATH = "using pulumi-language-"  # which set-up put there
# As Google's provider says it, and as the client libraries do.
_NO_GOOGLE_LOGIN = re.compile("failed to load application credentials|[Dd]efault credentials were not found")
_RETRIED = "error downloading provider"
_INSTALL = re.compile(r"pulumi plugin install resource \S+ v[\w.+-]*\w")
_NO_PLUGIN = re.compile(rf"download and install resource plugin .*`({_INSTALL.pattern})`: ([^\n]*)")
_LONGEST_KEYS = 60
_KEYS = ("secretsprovider", "encryptedkey")


@dataclass(frozen=True)
class ResourceChange:
    """A resource that an update would touch.

    Attributes:
        operation: a key of `SIGNS`.
        kind: the resource's type, e.g. "gcp:storage/bucket:Bucket".
        name: its name in the program.
        keys: inputs that differ, of an update or a replacement.
    """

    operation: str
    kind: str
    name: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = ", ".join(self.keys)
        keys = keys if len(keys) <= _LONGEST_KEYS else f"{keys[:_LONGEST_KEYS]}…"
        return f"{SIGNS[self.operation]:<2} {self.kind}  {self.name}{f'  [{keys}]' if keys else ''}"


@dataclass(frozen=True)
class LayerPlan:
    """Outcome of `pulumi preview` of one layer.

    Attributes:
        layer: its name.
        up: whether it was compared with the state of its stack; else planned from nothing.
        changes: in Pulumi's order.
        warnings: each once.
        cost: what it costs once it is up.
        failed: whether the preview failed.
        output: all that Pulumi printed.
    """

    layer: str
    up: bool
    changes: tuple[ResourceChange, ...]
    warnings: tuple[str, ...]
    cost: Cost
    failed: bool
    output: str

    @property
    def failure(self) -> str:
        """Output of a preview that failed; without the attempts to get a plugin, which fill a screen."""
        lacking = _NO_PLUGIN.search(self.output)
        return f"  a plugin is missing: {lacking[1]} failed: {lacking[2]}" if lacking else self.output


@dataclass(frozen=True)
class Plan:
    """Plan of all layers that are on, in their order."""

    environment: str
    layers: tuple[LayerPlan, ...]
    costs: tuple[PriceRow, ...]
    preflight: tuple[Verdict, ...] = ()
    rates: tuple[Rate, ...] = ()

    @property
    def failed(self) -> list[str]:
        """Layers whose preview failed."""
        return [layer.layer for layer in self.layers if layer.failed]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of all layers, without repetitions."""
        return tuple(dict.fromkeys(warning for layer in self.layers for warning in layer.warnings))

    def refuse_failed(self) -> None:
        """Raise CommandError if a layer's preview failed; its output has been printed."""
        if self.failed:
            printed = "\n".join(layer.output for layer in self.layers if layer.failed)
            fix = f"\n    fix: {fix_of(Kind.LOGIN)}" if _NO_GOOGLE_LOGIN.search(printed) else ""
            if plugins := dict.fromkeys(_INSTALL.findall(printed)):
                install = " && ".join(plugins)
                fix = f"\n    fix: {install}; or use the emulated cloud: tpu rehearsal shell"
            raise CommandError(
                f"`pulumi preview` of {', '.join(self.failed)} failed; see the output above{fix}"
            )

    @property
    def empty(self) -> bool:
        """True if nothing would change."""
        return not any(layer.changes or layer.failed for layer in self.layers)

    @property
    def cost(self) -> Cost:
        """Cost of all planned resources once they are up."""
        costs = [layer.cost for layer in self.layers]
        return Cost(
            total([cost.hourly for cost in costs]),
            total([cost.idle_hourly for cost in costs]),
            all(cost.checked for cost in costs),
        )


def plan(environment: str, root: Path = ROOT, only: Sequence[str] = (), save: Path | None = None) -> Plan:
    """Preview every layer that is on, all at once; `only` some of them, if given.

    `save`: a folder for the plans, LAYER.json each, which `stacks.up` takes. Raises InfraError: wrong
    settings, more than the budget, or Pulumi can't be run. A layer whose preview fails is in the plan, with
    `failed`.
    """
    uncompared: list[str] = []
    checked = settings_to_apply(environment, root, uncompared)
    for other in uncompared:
        _LOG.warning("Pulumi.%s.yaml has problems, so its names aren't compared: tpu plan %s", other, other)
    require_on(checked, only)
    if save:
        save.mkdir(parents=True, exist_ok=True)
    with _stacks(checked, root, only, keyed=save is not None) as stacks:

        def preview(layer: str) -> LayerPlan:
            saving = ("--save-plan", str(save.absolute() / f"{layer}.json")) if save else ()
            fine, output, events = stacks.of(layer).capture(
                layer, "preview", "--stack", environment, "--non-interactive", *saving
            )
            changes = (
                _change(event["resourcePreEvent"]["metadata"])
                for event in events
                if "resourcePreEvent" in event
            )
            diagnostics = [event["diagnosticEvent"] for event in events if "diagnosticEvent" in event]
            warnings = (
                sentence(diagnostic["message"])
                for diagnostic in diagnostics
                if diagnostic.get("severity") == "warning"
            )
            own = [warning for warning in warnings if not warning.startswith((_FROM_PATH, _RETRIED))]
            return LayerPlan(
                layer,
                layer in stacks.up,
                tuple(change for change in changes if change),
                tuple(dict.fromkeys([*stacks.why_not, *own])),
                cost_of(list(registry.named(layer).prices(checked))),
                not fine,
                output.rstrip(),
            )

        slices = nodes(checked) if "tpu" in stacks.names else ()
        code = checked[TpuSettings].code
        verdicts = stacks.pool.submit(preflight.of, slices, code)
        google = Client(checked.project)
        present = stacks.pool.submit(_require_present, google, checked, stacks.names)
        planned = tuple(stacks.pool.map(preview, stacks.names))
        present.result()
        made = {change.name for layer in planned for change in layer.changes if change.operation in _MAKES}
        # The configs that are here may differ from those of a bundle that a slice names itself.
        read = [node for node in slices if node.name in made and node.bundle == checked[TpuSettings].bundle]
        inputs.require(google, environment, inputs.of(read), root / (code or ""))
        rates, costs = tuple(prices.rates(checked, only)), tuple(prices.of(checked, only))
        return Plan(environment, planned, costs, tuple(verdicts.result()), rates)


def _require_present(google: Client, settings: Settings, names: Sequence[str]) -> None:
    """Raise InputError for what layers use and isn't there; what Google doesn't tell isn't known."""
    problems: list[Problem] = []
    for hook in filter(None, (registry.named(name).hooks.lacking for name in names)):
        with suppress(RequestError):
            problems += hook(settings, google)
    if problems:
        raise InputError(listed(f"Pulumi.{settings.environment}.yaml", problems))


def foreseen(
    environment: str, root: Path = ROOT, only: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return the resources that each layer's stack would have, as its state would hold them.

    Raises InfraError: wrong settings, or a preview that fails.
    """
    with _stacks(from_file(environment, root), root, only) as stacks:

        def resources(layer: str) -> list[dict[str, Any]]:
            preview = stacks.of(layer).execute(layer, "preview", "--json", "--stack", environment)
            return [step["newState"] for step in json.loads(preview)["steps"] if "newState" in step]

        return dict(zip(stacks.names, stacks.pool.map(resources, stacks.names), strict=True))


def text(plan: Plan, full: bool = False) -> str:
    """Format for a terminal: prices, changes (with `full` all output of Pulumi), and a table."""
    parts = [table(plan.costs), ""]
    parts += [rates_table(plan.rates), ""] if plan.rates else []
    parts += [*(verdict.line for verdict in plan.preflight if not verdict.warn), ""]
    for layer in plan.layers:
        against = "compared with its stack" if layer.up else "no stack known, planned from nothing"
        parts.append(f"== {layer.layer}: {against} ==")
        if full or layer.failed:
            parts.append(layer.output if full else layer.failure)
        else:
            parts += [f"  {change}" for change in layer.changes] or ["  no changes"]
        parts.append("")
    parts += [f"warning: {warning}" for warning in plan.warnings]
    return "\n".join([*parts, *([""] if plan.warnings else []), summary(plan)])


def summary(plan: Plan) -> str:
    """Format a table of changes and prices; idle: no slice is up and no job runs."""
    return "\n".join(aligned(_rows(plan), right=True))


def markdown(plan: Plan) -> str:
    """Format as a comment on a pull request."""
    head, *rows = _rows(plan)
    lines = [
        f"### Plan of `{plan.environment}`",
        "",
        *markdown_table(head, rows, range(1, len(head))),
        "",
        *(f"{'⚠️' if verdict.warn else '✅'} {verdict.line}\n" for verdict in plan.preflight),
    ]
    reported = {verdict.line for verdict in plan.preflight}
    lines += [f"⚠️ {warning}\n" for warning in plan.warnings if warning not in reported]
    for layer in plan.layers:
        shown = [layer.failure] if layer.failed else [str(change) for change in layer.changes]
        if shown:
            counted = "failed" if layer.failed else f"{len(layer.changes)} changes"
            lines += [
                f"<details><summary>{layer.layer}: {counted}</summary>", "", "```text", *shown, "```", "",
                "</details>", "",
            ]  # fmt: skip
    lines += [f"> {line}" for line in dict.fromkeys(row.source for row in plan.costs)]
    lines += [f"> {NOTE}"] if not plan.cost.checked else []
    return "\n".join(lines).rstrip()


def as_json(plan: Plan) -> dict[str, Any]:
    """Convert to JSON types."""
    return {
        "environment": plan.environment,
        "layers": [
            {key: value for key, value in asdict(layer).items() if key not in ("output", "cost")}
            | layer.cost.as_json()
            for layer in plan.layers
        ],
        **plan.cost.as_json(),
        "prices": [asdict(row) for row in plan.costs],
        "rates": [asdict(rate) for rate in plan.rates],
        "preflight": [asdict(verdict) for verdict in plan.preflight],
    }


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    def row(name: str, counts: Mapping[str, int], cost: Cost, failed: bool) -> tuple[str, ...]:
        shown = ["failed", "", "", ""] if failed else [str(counts[operation]) for operation in _COUNTED]
        return (name, *shown, *cost.cells)

    total: Counter[str] = Counter()
    signs = [SIGNS[operation] for operation in _COUNTED]
    rows = [("layer", *signs, "$/hour", "$/day", "$/month", "idle $/month")]
    for layer in plan.layers:
        counts = Counter(change.operation for change in layer.changes)
        total += counts
        rows.append(row(layer.layer, counts, layer.cost, layer.failed))
    rows.append(row("sum", total, plan.cost, False))
    return rows


def _change(metadata: Mapping[str, Any]) -> ResourceChange | None:
    """Parse an event's resource; None if it isn't touched, or for further steps of a replacement."""
    if metadata["op"] not in SIGNS or metadata["type"] == _STACK:
        return None
    keys = tuple(metadata.get("detailedDiff") or metadata.get("diffs") or ())
    return ResourceChange(metadata["op"], metadata["type"], metadata["urn"].rpartition("::")[2], keys)


@dataclass(frozen=True)
class _Stacks:
    """Stacks of some layers, with empty ones in place of those that don't exist.

    Attributes:
        names: the layers, in their order.
        up: those with a stack of the environment.
        why_not: why no stack is known, if no backend can be read.
        pool: a thread for each, since no layer's preview needs another's, and each takes seconds to start.
    """

    names: Sequence[str]
    real: Pulumi
    empty: Pulumi
    up: set[str]
    why_not: Sequence[str]
    pool: Executor

    def of(self, layer: str) -> Pulumi:
        """Return the project in which a layer is previewed."""
        if layer in self.up:
            return self.real
        self.empty.create(layer)
        return self.empty


@contextmanager
def _stacks(checked: Settings, root: Path, only: Sequence[str], *, keyed: bool = False) -> Iterator[_Stacks]:
    """Yield the stacks of the layers that are on, `only` some of them, if given; see `empty_state`."""
    environment = checked.environment
    names = [layer.name for layer in layers_on(checked) if not only or layer.name in only]
    real = Pulumi(environment, root)
    with (
        formatting_kept(environment, root),
        empty_state(environment, names, root, keyed=keyed) as empty,
        ThreadPoolExecutor(max(1, len(names))) as pool,
    ):
        try:
            known = zip(names, pool.map(real.stacks, names), strict=True)
            up, why_not = {layer for layer, stacks in known if environment in stacks}, []
        except CommandError as error:
            up, why_not = set(), [f"no Pulumi state to compare with (`pulumi login` chooses one): {error}"]
        if up:
            real.require_passphrase()
        yield _Stacks(names, real, empty, up, why_not, pool)


@contextmanager
def empty_state(
    environment: str, names: Sequence[str], root: Path, *, keyed: bool = False
) -> Iterator[Pulumi]:
    """Copy the projects to a temporary backend.

    Stack files are copied, one for each layer: making a stack writes its file, and all are made at once. With
    `keyed` the copies have the key of the real backend's secrets, by which a saved plan is read again.
    """
    with tempfile.TemporaryDirectory(prefix="plan-") as name:
        folder = Path(name)
        stack = yaml_file.load((root / f"Pulumi.{environment}.yaml").read_text(encoding="utf-8"))
        # JSON is YAML in which no text can be taken for a number.
        settings_text = f"config: {json.dumps(stack['config'], ensure_ascii=False)}\n"
        settings_text += "".join(f"{key}: {stack[key]}\n" for key in _KEYS if keyed and key in stack)
        for layer in names:
            place = folder / directory(layer, root)
            place.mkdir(parents=True, exist_ok=True)
            project = yaml.safe_load((root / directory(layer, root) / "Pulumi.yaml").read_text())
            main = root / directory(layer, root) / project.get("main", ".")
            project |= {"main": str(main.resolve()), "stackConfigDir": "."}
            (place / f"Pulumi.{environment}.yaml").write_text(settings_text, encoding="utf-8")
            (place / "Pulumi.yaml").write_text(yaml.safe_dump(project), encoding="utf-8")
        (folder / "state").mkdir()
        yield Pulumi(
            environment,
            folder,
            variables={
                "PULUMI_BACKEND_URL": f"file://{folder / 'state'}",
                "PULUMI_CONFIG_PASSPHRASE": "for a state that is thrown away",
            },
        )
