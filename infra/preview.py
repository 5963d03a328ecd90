"""The plan of all four layers and the price of the slices, before anything exists.

Layers that are up are compared with their state. The others are planned against an empty
state in a temporary folder, so a preview writes nothing to anybody's backend and
needs no login to one.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from infra import names, prices, settings
from infra.cli import Pulumi
from infra.errors import CommandError
from infra.settings.sources import ROOT


def preview(environment: str, root: Path = ROOT) -> int:
    """Print prices, then `pulumi preview` of each layer. Raises InfraError at the first failure."""
    checked = settings.from_file(environment, root)
    print(prices.table(checked), flush=True)
    real = Pulumi(environment, root)
    up = _layers_that_are_up(real)
    with empty_state(environment, root) as empty:
        for layer in names.LAYERS:
            if layer in up:
                print(f"\n== {layer}: changes to what is up ==", flush=True)
            else:
                print(f"\n== {layer}: no stack known, planned from nothing ==", flush=True)
                empty.ask(layer, "stack", "init", environment, "--non-interactive")
            (real if layer in up else empty).show(
                layer, "preview", "--stack", environment, "--non-interactive"
            )
    first = next((layer for layer in names.LAYERS if layer not in up), names.LAYERS[-1])
    print(f"\nNext: {names.up_command(first, environment)}")
    return 0


def _layers_that_are_up(pulumi: Pulumi) -> set[str]:
    """The layers with a stack of this environment. Where no backend answers: none, and a line on why."""
    try:
        return {layer for layer in names.LAYERS if pulumi.environment in pulumi.stacks(layer)}
    except CommandError as error:
        print(f"\nNo Pulumi state to compare with (`pulumi login` chooses one): {error}")
        return set()


@contextmanager
def empty_state(environment: str, root: Path) -> Iterator[Pulumi]:
    """The same projects on a backend of their own that is thrown away.

    Stack files are copied without the keys of the real backend's secrets.
    """
    with tempfile.TemporaryDirectory(prefix="preview-") as name:
        folder = Path(name)
        stack = yaml.safe_load((root / f"Pulumi.{environment}.yaml").read_text(encoding="utf-8"))
        (folder / f"Pulumi.{environment}.yaml").write_text(
            yaml.safe_dump({"config": stack["config"]}, sort_keys=False), encoding="utf-8"
        )
        for layer in names.LAYERS:
            place = folder / names.project_directory(layer)
            place.mkdir(parents=True, exist_ok=True)
            project = yaml.safe_load((root / names.project_directory(layer) / "Pulumi.yaml").read_text())
            project["main"] = str(root)
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
