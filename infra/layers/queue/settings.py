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
        "chips, a multiple of a slice's; other teams may borrow idle ones",
        rule=rules.between(0, 1_000_000),
        example="16",
    )
    borrow: int | None = setting(
        "maximum chips to borrow beyond them; default: all idle ones",
        default=None,
        rule=rules.between(0, 1_000_000),
    )


@dataclass(frozen=True, kw_only=True)
class TeamSettings:
    """An item of `queue:teams`."""

    name: str = setting("name of the team", rule=NAMESPACE, example="vision")
    namespace: str | None = setting(
        "Kubernetes namespace of its jobs; default: the team's name", default=None, rule=NAMESPACE
    )
    members: tuple[str, ...] = setting(
        "users and groups who may submit and cancel its jobs", default=(), rule=rules.MEMBER
    )
    quota: tuple[TeamQuotaSettings, ...] = setting(
        "guaranteed chips, by pool; once any team has a quota, each team has its own ClusterQueue, and all "
        "may borrow chips that are in no quota",
        default=(),
    )
    weight: int = setting(
        "share of the chips that teams borrow: 2 is twice that of a team with 1",
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
        "secrets of Secret Manager that only this team's jobs may read, in addition to storage:secrets",
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
        "image of Kueue's controller; nodes pull images of registry.k8s.io through a remote repository, "
        "which the layer creates",
        default=IMAGES["kueue"],
        rule=rules.DIGEST,
    )
    jobset_image: str = setting(
        "image of JobSet's controller, pulled the same way", default=IMAGES["jobset"], rule=rules.DIGEST
    )
    image: str | None = setting(
        "image that jobs run in; without it `tpu job submit` needs --image", default=None, rule=rules.DIGEST
    )
    install: str = setting(
        "`bundle`: pods install the bundle of tpu:bundle, on an image with bash and curl; `image`: the image "
        "contains it",
        default="bundle",
        rule=rules.one_of("bundle", "image"),
    )
    env: Mapping[str, str] = setting(
        "environment variables of every job; `--env` overrides them",
        default={},
        rule=VALUE,
        key_rule=NAME,
    )
    secrets: tuple[str, ...] = setting(
        "environment variables of every job from Secret Manager, like `--secret`",
        default=(),
        rule=SECRET,
        example="[wandb-api-key]",
    )
    queueing_strategy: str = setting(
        "BestEffortFIFO: later jobs pass one that doesn't fit; StrictFIFO: none passes it, so chips may be "
        "idle",
        default=STRATEGIES[0],
        rule=rules.one_of(*STRATEGIES),
    )
    chips: int | None = setting(
        "optional check: the total chips of gke:tpuPools",
        default=None,
        rule=rules.between(0, 1_000_000),
    )
    restarts: int = setting(
        "maximum restarts of a job after lost workers; maintenance and preemptions aren't counted",
        default=4,
        rule=rules.between(0, 100),
    )

    @property
    def variables(self) -> Variables:
        """Return the variables of every job."""
        return Variables(self.env, self.secrets)
