"""Settings of the queue layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.layers.queue.kueue import PRIORITIES, STRATEGIES
from infra.layers.queue.versions import IMAGES
from infra.settings import rules
from infra.settings.schema import setting
from infra.settings.variables import NAME, SECRET, SECRET_NAME, VALUE, Variables

NAMESPACE = rules.pattern(
    "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "a Kubernetes namespace: 1 to 63 lowercase letters, digits and hyphens, first and last no hyphen",
    "rename it",
)


@dataclass(frozen=True, kw_only=True)
class TeamQuotaSettings:
    """An item of a team's `quota`."""

    pool: str = setting("name of an item of gke:tpuPools", rule=rules.RESOURCE_NAME, example="train")
    chips: int = setting(
        "chips of its nodes that the team gets whenever its jobs need them; other teams borrow idle ones",
        rule=rules.between(0, 1_000_000),
        example="16",
    )
    borrow: int | None = setting(
        "chips that it may borrow beside them, at most; all that are idle, unless given",
        default=None,
        rule=rules.between(0, 1_000_000),
    )


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """An item of `queue:teams`."""

    name: str = setting("name of the team", rule=NAMESPACE, example="vision")
    namespace: str | None = setting(
        "Kubernetes namespace of its jobs; the team's name, unless given", default=None, rule=NAMESPACE
    )
    members: tuple[str, ...] = setting("who may submit and cancel its jobs", default=(), rule=rules.MEMBER)
    quota: tuple[TeamQuotaSettings, ...] = setting(
        "its chips; with one of any team each team has a queue of its own, and all borrow what no team's "
        "quota has",
        default=(),
    )
    weight: int = setting(
        "its part of the chips that teams borrow: 2 is twice that of a team with 1",
        default=1,
        rule=rules.between(1, 1000),
    )
    priorities: tuple[str, ...] = setting(
        "priorities that its jobs may have",
        default=tuple(PRIORITIES),
        rule=rules.one_of(*PRIORITIES),
        not_empty="a job has a priority",
    )
    secrets: tuple[str, ...] = setting(
        "secrets of Secret Manager that its jobs may read and other teams' may not, beside storage:secrets",
        default=(),
        rule=SECRET_NAME,
        example="[hf-token]",
    )


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """JobSet and Kueue on the cluster, and the teams that submit jobs."""

    teams: tuple[TeamSettings, ...] = setting(
        "the teams: a namespace and a queue each",
        example="[{name: vision}]",
        not_empty="jobs are submitted by teams",
    )
    kueue_image: str = setting(
        "image of Kueue's controller; one of registry.k8s.io is pulled by a remote repository of ours",
        default=IMAGES["kueue"],
        rule=rules.DIGEST,
    )
    jobset_image: str = setting(
        "image of JobSet's controller; likewise", default=IMAGES["jobset"], rule=rules.DIGEST
    )
    image: str | None = setting(
        "image that jobs run in; without it `tpu job submit` needs --image", default=None, rule=rules.DIGEST
    )
    install: str = setting(
        "what pods run: `bundle`, that of tpu:bundle, which they install as hosts do, on an image with bash "
        "and curl; or `image`, what the image itself has",
        default="bundle",
        rule=rules.one_of("bundle", "image"),
    )
    env: Mapping[str, str] = setting(
        "environment variables of every job; those of `--env` come before them",
        default={},
        rule=VALUE,
        key_rule=NAME,
    )
    secrets: tuple[str, ...] = setting(
        "environment variables of every job from Secret Manager, as those of `--secret`",
        default=(),
        rule=SECRET,
        example="[wandb-api-key]",
    )
    queueing_strategy: str = setting(
        "BestEffortFIFO: a job that doesn't fit lets smaller ones and those for other pools pass; "
        "StrictFIFO: none passes it, so chips may stand idle, and the order is strict",
        default=STRATEGIES[0],
        rule=rules.one_of(*STRATEGIES),
    )
    chips: int | None = setting(
        "chips of all node pools, which the queue's quota is derived from; only checked",
        default=None,
        rule=rules.between(0, 1_000_000),
    )
    restarts: int = setting(
        "how often a job is restarted after a failure that isn't its own; maintenance and preemption are not "
        "counted",
        default=4,
        rule=rules.between(0, 100),
    )

    @property
    def variables(self) -> Variables:
        """Return the variables of every job."""
        return Variables(self.env, self.secrets)
