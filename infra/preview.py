"""The plan and the price of all layers that are on in an environment, before anything exists.

Layers that are up are compared with their state. The others are planned against an empty
state in a temporary folder, so a preview writes nothing to anybody's backend and
needs no login to one.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import yaml

from infra import layers, prices, settings
from infra.cli import Pulumi
from infra.errors import CommandError
from infra.settings import yaml_file
from infra.settings.record import formatting_kept
from infra.settings.sources import ROOT


def preview(environment: str, root: Path = ROOT) -> int:
    """Print prices, then `pulumi preview` of each layer. Raises InfraError if one of them failed."""
    checked = settings.from_file(environment, root)
    names = [layer.name for layer in layers.on(checked)]
    print(prices.table(prices.of(checked)), flush=True)
    prices.within_budget(checked)
    real = Pulumi(environment, root)
    print("\nPlanning all layers ...", flush=True)
    # No layer's plan needs another's, and each spends its seconds on starting up.
    with (
        formatting_kept(environment, root),
        empty_state(environment, names, root) as empty,
        ThreadPoolExecutor(len(names)) as pool,
    ):
        up = _up(real, names, pool)
        if up:
            real.require_passphrase()

        def plan(layer: str) -> tuple[bool, str]:
            pulumi = real if layer in up else empty
            if pulumi is empty:
                empty.ask(layer, "stack", "init", environment)
            return pulumi.hear(layer, "preview", "--stack", environment, "--non-interactive")

        failed = []
        for layer, (fine, said) in zip(names, pool.map(plan, names), strict=True):
            against = "changes to what is up" if layer in up else "no stack known, planned from nothing"
            print(f"\n== {layer}: {against} ==\n{said.rstrip()}", flush=True)
            failed += [] if fine else [layer]
    if failed:
        raise CommandError(f"`pulumi preview` of {', '.join(failed)} failed; what it said is above")
    first = next((layer for layer in names if layer not in up), names[-1])
    print(f"\nNext: {layers.up_command(first, environment)}")
    return 0


def _up(pulumi: Pulumi, names: Sequence[str], pool: Executor) -> set[str]:
    """The layers with a stack of this environment. Where no backend answers: none, and a line on why."""
    try:
        stacks = zip(names, pool.map(pulumi.stacks, names), strict=True)
        return {layer for layer, known in stacks if pulumi.environment in known}
    except CommandError as error:
        print(f"\nNo Pulumi state to compare with (`pulumi login` chooses one): {error}")
        return set()


@contextmanager
def empty_state(environment: str, names: Sequence[str], root: Path) -> Iterator[Pulumi]:
    """The same projects on a backend of their own that is thrown away.

    Stack files are copied without the keys of the real backend's secrets, one for each layer: making a stack
    writes its file, and all are made at once.
    """
    with tempfile.TemporaryDirectory(prefix="preview-") as name:
        folder = Path(name)
        stack = yaml_file.load((root / f"Pulumi.{environment}.yaml").read_text(encoding="utf-8"))
        # JSON is YAML in which no text can be taken for a number.
        settings_text = json.dumps({"config": stack["config"]}, ensure_ascii=False)
        for layer in names:
            place = folder / layers.directory(layer, root)
            place.mkdir(parents=True, exist_ok=True)
            project = yaml.safe_load((root / layers.directory(layer, root) / "Pulumi.yaml").read_text())
            project |= {"main": str(root), "stackConfigDir": "."}
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
