"""Settings of the builds layer."""

from dataclasses import dataclass

from infra.settings import rules
from infra.settings.schema import setting


@dataclass(frozen=True, kw_only=True)
class BuildsSettings:
    """Cloud Build brings the layers up and down, as an account of its own."""

    image: str = setting(
        "image that builds run in: Debian with bash, curl and Python 3.11 to 3.13, such as "
        "docker.io/library/python; one that has `tpu` needs no set-up in each build",
        rule=rules.DIGEST,
    )
    layers: tuple[str, ...] = setting(
        "layers that builds bring up and down; all that are on but storage and builds, unless given",
        default=(),
        not_empty="a build brings some layer up",
    )
    users: tuple[str, ...] = setting("who may start builds", default=(), rule=rules.MEMBER)
    account_id: str = setting(
        "account that builds run as", default="tpu-builds", rule=rules.ACCOUNT_ID, per_environment=True
    )
    timeout_minutes: int = setting(
        "how long a build may take; a v6e-256 takes longest", default=120, rule=rules.between(10, 1440, "min")
    )
