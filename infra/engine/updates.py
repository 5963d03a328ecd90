"""Bring layers up and down by Pulumi, after settling the remains of a killed `pulumi`.

Missing stacks are created. The settings' file keeps its text whatever Pulumi writes into it.
"""

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path

from google_facts import lags
from infra.core.environment import layers_on, require_on
from infra.engine import registry
from infra.engine.before import settings_to_apply
from infra.engine.pulumi import Pulumi
from infra.engine.recovery.interrupted import interrupted
from infra.engine.recovery.settle import Patience, settle
from infra.engine.settings import from_file
from infra.errors import CommandError, InfraError, InputError, UpdateError
from infra.settings.record import formatting_kept
from infra.settings.sources import ROOT, path_of


def up(
    environment: str,
    layers: Sequence[str] = (),
    root: Path = ROOT,
    options: Sequence[str] = (),
    after: str | None = None,
    output: int | None = None,
    plans: Path | None = None,
) -> int:
    """Bring layers up in their order; without `layers` all that are on, or those behind `after`.

    `options` go to each `pulumi up`; `plans`: folder with what `tpu plan --save` wrote, beyond which nothing
    is changed. Raises InfraError where one fails; those before it are up then.
    """
    checked = settings_to_apply(environment, root)
    on = [layer.name for layer in layers_on(checked)]
    ordered, pulumi = _ready(environment, [*layers, *filter(None, [after])], root, output)
    if not layers:
        ordered = on[on.index(after) + 1 if after in on else 0 :]
    require_on(checked, ordered)
    saved = {layer: _saved(plans, layer, environment) for layer in ordered} if plans else {}
    for layer in ordered:
        with formatting_kept(environment, root):
            _settle(environment, layer, root)
            if pulumi.export(layer) is None:
                pulumi.create(layer)
            if not plans:
                _up(pulumi, layer, options)
                continue
            try:
                pulumi.show(layer, "up", "--stack", environment, *options, *saved[layer])
            except CommandError as error:
                # Pulumi 3.272 says nothing where an output isn't as the plan has it.
                fix = _AGAIN.format(environment, layer, plans)
                raise CommandError(f"{error}\n    fix: {fix}") from None
    return 0


def _up(pulumi: Pulumi, layer: str, options: Sequence[str]) -> None:
    """Bring a layer up; retry while every error is one of `transient_errors`, or of what is new at Google.

    Raises CommandError if it fails otherwise, or once an error has lasted longer than its cause does.
    """
    begun: dict[str, float] = {}
    while True:
        try:
            pulumi.show(layer, "up", "--stack", pulumi.environment, *options)
            return
        except UpdateError as error:
            causes, now = _transient(layer, error), time.monotonic()
            if not causes:
                raise
            reason = "; ".join(sorted(causes))
            left_s = min(begun.setdefault(why, now) + lag_s - now for why, lag_s in causes.items())
            if left_s <= 0:
                again = f"tpu up {pulumi.environment} {layer}"
                raise CommandError(f"{error}\n    fix: {reason}; once they do: {again}") from None
        _LOG.warning("%s: %s; retrying for at most %.0f min", layer, reason, left_s / 60)
        time.sleep(PAUSE_S)


def _transient(layer: str, error: UpdateError) -> dict[str, float]:
    """Return why a failed update may pass later, and for how long to retry; {} where an error is permanent.

    Where several patterns match an error, the first counts.
    """
    of_layer = registry.named(layer).hooks.transient_errors
    known = _OF_ANY_LAYER | {text: (reason, RETRIED_S) for text, reason in of_layer.items()}
    causes: dict[str, float] = {}
    for messages in error.errors.values():
        if all(_FAILED in message for message in messages):
            continue  # the stack, since a resource of it did
        match = next((why for text, why in known.items() if any(re.search(text, m) for m in messages)), None)
        if not match:
            return {}
        causes[match[0]] = match[1]
    return causes


def _saved(plans: Path, layer: str, environment: str) -> tuple[str, str]:
    """Return the option for a layer's saved plan. Raises CommandError where there is none."""
    path = plans.absolute() / f"{layer}.json"
    if not path.is_file():
        fix = f"tpu plan {environment} {layer} --save {plans}"
        raise CommandError(f"no saved plan of {layer} in {plans}\n    fix: {fix}")
    return "--plan", str(path)


def down(
    environment: str,
    layers: Sequence[str],
    root: Path = ROOT,
    options: Sequence[str] = (),
    output: int | None = None,
) -> int:
    """Take layers down, the last one first.

    `options` go to each `pulumi destroy`. Raises InfraError where one fails; nothing after it was begun then.
    """
    ordered, pulumi = _ready(environment, layers, root, output)
    for layer in reversed(ordered):
        with formatting_kept(environment, root):
            _settle(environment, layer, root, until_made=False)
            state = pulumi.export(layer)
            if state is None or not state["deployment"].get("resources"):
                print(f"{layer}: nothing is up", flush=True)
                continue
            # With a target Pulumi doesn't end in the advice to run `pulumi stack rm`, which would delete the
            # settings of all layers. This one stands for everything.
            pulumi.show(layer, "destroy", "--stack", environment, "--target", "**", *options)
            print(f"{layer}: destroyed; its settings stay in Pulumi.{environment}.yaml", flush=True)
    if billed := _billed(environment, root, pulumi, ordered):
        next_down = f"tpu down {environment} {' '.join(billed)}"
        print(f"still up, and billed by the hour: {', '.join(billed)}; next: {next_down}")
    return 0


def _billed(environment: str, root: Path, pulumi: Pulumi, gone: Sequence[str]) -> list[str]:
    """Return the layers that are up, beside `gone`, and billed by the hour; none of wrong settings."""
    try:
        settings = from_file(environment, root)
    except InfraError:
        return []
    return [
        layer.name
        for layer in layers_on(settings)
        if layer.name not in gone
        and any(row.hourly != 0 for row in layer.prices(settings))
        and pulumi.state(layer.name)
    ]


def following(environment: str, root: Path, brought_up: Sequence[str]) -> list[str]:
    """Return the commands to type next, by the layers that are up."""
    settings, pulumi = from_file(environment, root), Pulumi(environment, root)
    on = layers_on(settings)
    commands = [
        command
        for layer in on
        if (command := layer.hooks.following(settings))
        and (layer.name in brought_up or pulumi.state(layer.name))
    ]
    if commands:
        return commands
    rest = {layer.name for layer in on} - {*brought_up}
    return [f"tpu {'up' if rest else 'doctor'} {environment}"]


def settle_layers(environment: str, layers: Sequence[str], root: Path = ROOT) -> int:
    """Settle layers, without `layers` all that are on, and say what was done."""
    layers = layers or [layer.name for layer in layers_on(from_file(environment, root))]
    for layer in _ready(environment, layers, root)[0]:
        if not _settle(environment, layer, root):
            print(f"{layer}: nothing to settle", flush=True)
    return 0


def refuse_interrupted(environment: str, layer: str) -> None:
    """Refuse to run the program before an interrupted update is settled.

    Raises CommandError with the command. Where Pulumi can't be asked, as under another CLI than the one on
    PATH, nothing is refused: Pulumi's own warning stays.
    """
    try:
        state = Pulumi(environment).export(layer)
    except CommandError:
        return
    operations = interrupted(state["deployment"]) if state else []
    if operations:
        raise CommandError(f"{'; '.join(operations)}\n    fix: tpu infra settle {environment} {layer}")


def _settle(environment: str, layer: str, root: Path, until_made: bool = True) -> list[str]:
    lines = settle(environment, layer, root, patience=PATIENCE, until_made=until_made)
    for line in lines:
        print(f"{layer}: {line}", flush=True)
    return lines


def _ready(
    environment: str, layers: Sequence[str], root: Path, output: int | None = None
) -> tuple[list[str], Pulumi]:
    """Return the layers in their order, and Pulumi. Raises InfraError, if possible before running Pulumi."""
    ordered = in_order(layers)
    path_of(environment, root)
    pulumi = Pulumi(environment, root, output=output)
    pulumi.require_passphrase()
    return ordered, pulumi


def in_order(layers: Sequence[str]) -> list[str]:
    """Sort layers, each behind those that it reads. Raises InputError for unknown names."""
    known = [layer.name for layer in registry.layers()]
    if unknown := sorted(set(layers) - set(known)):
        raise InputError(f"no layer {', '.join(unknown)}\n    fix: one of {', '.join(known)}")
    return [name for name in known if name in layers]


_LOG = logging.getLogger(__name__)
RETRIED_S, PAUSE_S = lags.AGENT.longest_s, 15.0
# Layers first compare the services that they call with those that storage has enabled.
_NEW_ACCOUNT = ("a new service account isn't known everywhere yet", lags.ACCOUNT.longest_s)
_OF_ANY_LAYER = {
    "If you enabled this API recently, wait": (
        "an API that was enabled just now doesn't answer yet", lags.API.longest_s
    ),
    r"(?i)service account \S*service-\d+@\S+ does not exist": (
        "a service agent of Google's is new, and isn't known everywhere yet", lags.AGENT.longest_s
    ),
    # Of grants and node pools: https://github.com/sassoftware/viya4-iac-gcp/issues/148
    r"(?i)service account \S+@\S+ does not exist": _NEW_ACCOUNT,
    # https://github.com/hashicorp/terraform-provider-google/issues/15042, and 18024
    r"Permission '?iam\.serviceAccounts\.get'? denied on resource \(or it may not exist\)": _NEW_ACCOUNT,
}  # fmt: skip
_FAILED = "update failed"
_AGAIN = (
    "if nothing above says why, or it names the plan: what is there isn't what the plan was made of; "
    "make it again: tpu plan {} {} --save {}"
)
PATIENCE = Patience()
