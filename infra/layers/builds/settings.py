"""Settings of the builds layer."""

from dataclasses import dataclass

from infra.settings import rules
from infra.settings.schema import setting


@dataclass(frozen=True, kw_only=True)
class BuildsSettings:
    """Cloud Build brings layers up and down, with its own service account."""

    image: str = setting(
        "image of builds: Debian with bash, curl and Python 3.11 to 3.13, such as docker.io/library/python; "
        "with `tpu` on its PATH builds skip the installation",
        rule=rules.DIGEST,
    )
    layers: tuple[str, ...] = setting(
        "layers that builds bring up and down; default: all that are on, except storage and builds",
        default=(),
        not_empty="a build brings some layer up",
    )
    users: tuple[str, ...] = setting("members who may start builds", default=(), rule=rules.MEMBER)
    account_id: str = setting(
        "service account of builds", default="tpu-builds", rule=rules.ACCOUNT_ID, per_environment=True
    )
    timeout_minutes: int = setting(
        "time limit of a build; a v6e-256 takes longest", default=120, rule=rules.between(10, 1440, "min")
    )
