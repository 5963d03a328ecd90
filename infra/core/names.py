"""Names and ids shared by layers, as functions of the settings.

Ids have Google's own form `projects/…`, the one that the TPU API gives back: a link or a
bare name there would replace the pod on every `pulumi up`.
"""

from hashlib import sha256

from infra.settings.schema import Settings
from settings_schema.rules import Rule

STACK_TYPE = "pulumi:pulumi:Stack"

NAME_LENGTH = 63


def account_email(settings: Settings, id_: str | None) -> str:
    """Address of the project's account of this id."""
    return f"{id_}@{settings.project}.iam.gserviceaccount.com"


def labels(environment: str, layer: str) -> dict[str, str]:
    """Return the labels of everything that a stack makes, by which it is found at Google."""
    return {"environment": environment, "layer": layer}


def fitted(name: str) -> str:
    """`name` within Google's 63 characters; a longer one ends in a hash of the whole."""
    if len(name) <= NAME_LENGTH:
        return name
    return f"{name[: NAME_LENGTH - 9].rstrip('-')}-{sha256(name.encode()).hexdigest()[:8]}"


def per_environment(default: str, environment: str, rule: Rule) -> str:
    """Return a default name with the environment's behind it, or a hash of that where the rule needs it."""
    name = f"{default}-{environment.replace('_', '-')}"
    return name if rule.ok(name) else f"{default}-{sha256(environment.encode()).hexdigest()[:6]}"
