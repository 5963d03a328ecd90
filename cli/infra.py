"""`tpu infra`: one layer at a time, prices, roles, recovery from an interruption."""

from collections.abc import Sequence
from pathlib import Path

import click

from cli import options
from cli.command import Group
from cli.options import combined
from infra.doctor import grants
from infra.engine import prices as layer_prices
from infra.engine import refusals
from infra.engine import updates as stacks

_ALL_ON = click.argument("layers", metavar="[LAYER]...", nargs=-1, help="default: all layers that ENV has")
_CHANGE = combined(
    options.yes, click.option("--skip-preview", is_flag=True, help="Apply without showing the plan.")
)


@click.group(cls=Group, epilog="\b\nExamples:\n  tpu infra prices dev")
def infra() -> None:
    """Price, bring up, take down and recover the layers of an environment."""


@infra.command(examples=["dev", "dev gke"])
@options.environment
@_ALL_ON
@options.as_json
@click.pass_obj
def prices(root: Path, environment: str, layers: Sequence[str], as_json: bool) -> int:
    """Show the prices of the layers, or of some alone."""
    return layer_prices.show(environment, root, layers, as_json=as_json)


@infra.command(examples=["dev"])
@options.environment
@options.as_json
@click.pass_obj
def roles(root: Path, environment: str, as_json: bool) -> int:
    """Show the commands that grant each account its roles."""
    return grants.show(environment, root, as_json=as_json)


@infra.command(examples=["dev", "dev network"])
@options.environment
@_ALL_ON
@click.pass_obj
def settle(root: Path, environment: str, layers: Sequence[str]) -> int:
    """Recover from a killed pulumi: clear its lock, import what it created."""
    return stacks.settle_layers(environment, layers, root)


@infra.command(examples=["dev storage network --yes"])
@options.environment
@_ALL_ON
@_CHANGE
@click.option("--plan", "plans", metavar="DIR", type=options.PATH,
              help="Apply no more than these plans, of `tpu plan --save DIR`.")  # fmt: skip
@click.option("--after", metavar="LAYER", help="Only the layers after this one.")
@click.pass_obj
def up(
    root: Path, environment: str, layers: Sequence[str], yes: bool, skip_preview: bool, plans: Path | None,
    after: str | None,
) -> int:  # fmt: skip
    """Settle, then run pulumi up of each layer, in their order."""
    return stacks.up(environment, layers, root, _flags(yes, skip_preview), after, plans=plans)


@infra.command(examples=["dev network --check"])
@options.environment
@click.argument("layers", metavar="LAYER...", nargs=-1, required=True, help="at least one")
@_CHANGE
@click.option("--check", is_flag=True, help="Only report what prevents it.")
@click.pass_obj
def down(
    root: Path, environment: str, layers: Sequence[str], yes: bool, skip_preview: bool, check: bool
) -> int:
    """Settle, then run pulumi destroy of each layer, the last one first."""
    held = refusals.refuse(environment, stacks.in_order(layers), root)
    if "tpu" in held:
        from fleet.removal import require_no_fleets  # slow to import

        require_no_fleets(environment, held["tpu"], root)
    if check:
        print(f"nothing prevents taking {', '.join(layers)} down")
        return 0
    return stacks.down(environment, layers, root, _flags(yes, skip_preview))


def _flags(yes: bool, skip_preview: bool) -> list[str]:
    return [flag for flag, given in (("--yes", yes), ("--skip-preview", skip_preview)) if given]
