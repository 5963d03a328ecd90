"""Settings of the builds layer."""

from dataclasses import dataclass

from infra.settings import rules
from infra.settings.schema import setting

_REPOSITORY = rules.pattern(
    "[a-z]([-a-z0-9]{0,61}[a-z0-9])?",
    "1 to 63 lowercase letters, digits and hyphens, first a letter, last no hyphen",
    "rename it",
)


@dataclass(frozen=True, kw_only=True)
class BuildsSettings:
    """Cloud Build brings the layers up and down: one account previews, another applies."""

    layers: tuple[str, ...] = setting(
        "layers that builds bring up and down; all that are on but storage and builds, unless given",
        default=(),
    )
    preview_users: tuple[str, ...] = setting("who may start previews", default=(), rule=rules.MEMBER)
    apply_users: tuple[str, ...] = setting(
        "who may start builds that apply, destroy, or make the builder image", default=(), rule=rules.MEMBER
    )
    preview_account_id: str = setting(
        "account that previews, and can't change anything", default="tpu-preview", rule=rules.ACCOUNT_ID
    )
    apply_account_id: str = setting("account that applies", default="tpu-apply", rule=rules.ACCOUNT_ID)
    image_account_id: str = setting(
        "account that builds the builder image", default="tpu-image", rule=rules.ACCOUNT_ID
    )
    repository: str = setting(
        "Artifact Registry repository of the builder image", default="tpu-builds", rule=_REPOSITORY
    )
    image: str | None = setting(
        "the builder image, which the build `image` prints; without it only that one is rendered",
        default=None,
        rule=rules.DIGEST,
    )
    base_image: str | None = setting(
        "what the builder image is built on: Debian with Python 3.11 to 3.13, such as "
        "docker.io/library/python; without it the build `image` isn't rendered",
        default=None,
        rule=rules.DIGEST,
    )
    docker_image: str | None = setting(
        "the builder with Docker that builds it, such as gcr.io/cloud-builders/docker; likewise",
        default=None,
        rule=rules.DIGEST,
    )
    timeout_minutes: int = setting(
        "how long a build may take; a v6e-256 takes longest", default=120, rule=rules.between(10, 1440, "min")
    )
