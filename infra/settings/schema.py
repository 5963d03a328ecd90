"""Schema of settings: types, defaults, meanings and rules; and the sections that belong to no layer.

A field `bucket_name` of the storage layer's class is `storage:bucketName` in `Pulumi.<env>.yaml`.
The parser, the error messages and the tables in docs/reference/settings are made from such classes
alone; a layer's stands in its folder, with the rules between its fields.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from infra.errors import InfraError, Problem
from infra.settings import rules
from infra.settings.spelling import camel_case
from settings_schema.schema import hints_of, once_a_class, record_of
from settings_schema.schema import setting as setting

T = TypeVar("T")
UNPROTECTED, PRODUCTION = "dev", "prod"
"""The environment that a destroy takes whole, and that needs no budget; and where rules never give way."""
# Labels that the program sets itself: on everything, and on nodes.
STACK_LABELS = frozenset({"environment", "layer"})
NODE_LABELS = STACK_LABELS | {"slice", "stack", "fleet", "member", "generation", "bundle", "spec"}


def labels_setting(about: str, reserved: Collection[str] = STACK_LABELS) -> Any:
    """Declare a field with labels."""
    return setting(about, default={}, rule=rules.LABEL_VALUE, key_rule=rules.LABEL_KEY, reserved=reserved)


# Hosts have no external address, so SSH goes through Identity-Aware Proxy, which only the alpha command
# knows for TPUs. Without --plain it writes the caller's key into the node's metadata first, also where OS
# Login makes that useless: that needs tpu.nodes.update, with which one may change what the hosts run at
# their next boot, and it drifts from what Pulumi wrote. So it stays plain, and ssh gets its options here.
# Addresses are used again by new hosts with new keys; which machine this is, the tunnel says.
SSH = (
    "gcloud alpha compute tpus tpu-vm ssh {login}@{node} --project={project} --zone={zone}"
    " --tunnel-through-iap --plain --ssh-flag=-i~/.ssh/google_compute_engine"
    " --ssh-flag=-oStrictHostKeyChecking=no --ssh-flag=-oUserKnownHostsFile=/dev/null"
)
# What a user is called on hosts.
LOGIN = "gcloud compute os-login describe-profile --format='value(posixAccounts[0].username)'"


@dataclass(frozen=True, kw_only=True)
class GcpSettings:
    """Settings shared by all layers."""

    project: str = setting("project that holds everything", rule=rules.PROJECT_ID, example="my-project")
    default_labels: Mapping[str, str] = labels_setting(
        "labels of all resources that take labels; `environment` and `layer` are added", NODE_LABELS
    )


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Limits of spending and of recovery; SSH."""

    dollars_per_hour: int | None = setting(
        "maximum list price of all chips in this environment, GKE pools and Slurm nodesets included; `plan`, "
        "`up` and commands that create slices refuse more, or an unknown price",
        default=None,
        rule=rules.between(1, 1_000_000, "$/h"),
    )
    dollars_per_run: int | None = setting(
        "maximum predicted price of a run, its slices' price times `--hours`; `tpu run` and `tpu job submit` "
        "refuse more, an unknown price, or a missing `--hours`",
        default=None,
        rule=rules.between(1, 10_000_000, "$"),
    )
    preemptions_per_day: int | None = setting(
        "maximum recreations of preempted slices per day, all slices together; 0: none; default: no limit",
        default=None,
        rule=rules.between(0, 100_000),
    )
    failures_per_day: int = setting(
        "maximum replacements per day of a slice whose boot failed or whose workers are silent; 0: never",
        default=3,
        rule=rules.between(0, 100),
    )
    heartbeat_timeout_s: int = setting(
        "silence of a slice's workers, while others report, after which it counts as failed",
        default=1800,
        rule=rules.between(300, 86400, "s"),
    )
    ssh: str = setting(
        "command by which `tpu fleet exec` and `tpu ssh` reach a worker; run without a shell, {command} is "
        "one argument",
        default=f"{SSH} --worker={{worker}} --quiet --command={{command}}",
        rule=rules.SSH,
    )


@dataclass(frozen=True, kw_only=True)
class PolicyException:
    """Item of `policy:exceptions`."""

    rule: str = setting("id of the rule", rule=rules.POLICY_RULE, example="B04")
    resource: str = setting(
        "names of the resources, as Pulumi shows them; * stands for any part",
        rule=rules.RESOURCES,
        example="storage-dev",
    )
    reason: str = setting(
        "reason of the exception", rule=rules.REASON, example="copied to another bucket each day"
    )
    until: str = setting("last day of the exception", rule=rules.DATE, example='"2027-06-30"')


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The rules of docs/reference/policy.md."""

    enforcement: str = setting(
        "mandatory: a violation fails the preview or update; advisory: it is a warning",
        default="mandatory",
        rule=rules.one_of("mandatory", "advisory"),
    )
    exceptions: tuple[PolicyException, ...] = setting(
        "resources that may break a rule, each with a reason and a last day", default=()
    )

    @property
    def mandatory(self) -> bool:
        """True if a broken rule ends the preview or update."""
        return self.enforcement == "mandatory"


@dataclass(frozen=True)
class Settings:
    """Contents of `Pulumi.<env>.yaml`, typed and checked.

    Attributes:
        environment: its name.
        sections: each by its class; a layer that is off in the environment has none.
        layers: all that the program declares (infra/core/layer.py), on or off, in their order.
    """

    environment: str
    sections: Mapping[type, Any]
    layers: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def project(self) -> str:
        """The Google Cloud project that holds everything."""
        return self[GcpSettings].project

    @property
    def protected(self) -> bool:
        """True for every environment but `dev`, which is only for experiments."""
        return self.environment != UNPROTECTED

    @property
    def layers_on(self) -> tuple[Any, ...]:
        """The layers that are on."""
        return tuple(layer for layer in self.layers if layer.settings in self.sections)

    def __getitem__(self, kind: type[T]) -> T:
        """Return a section. Raises InfraError where its layer is off."""
        section: T | None = self.get(kind)
        if section is None:
            raise InfraError(f"{kind.__name__} isn't set in {self.environment}: its layer is off there")
        return section

    def get(self, kind: type[T]) -> T | None:
        """Return a section; None where its layer is off."""
        return self.sections.get(kind)


Relation = tuple[tuple[str, ...], Callable[[Settings, set[str]], Iterator[Problem]]]
"""A rule between settings, with the key paths that it reads: it is silent where one of these is broken
already. It gets the settings, and the key paths that the file has.
"""
ADDED_SLICES = "tpu:slices beside the file"
"""In these key paths where `tpu:slices` has ad hoc fleets, too: rules of the file's own size don't apply."""

SHARED: Mapping[str, type] = {"gcp": GcpSettings, "fleet": FleetSettings, "policy": PolicySettings}
"""Sections that are no layer's."""


@once_a_class
def keys_of(section: type) -> Mapping[str, "Field[Any]"]:
    """Return a section's fields by their YAML names."""
    return {camel_case(item.name): item for item in fields(section)}


@once_a_class
def records(section: type) -> Mapping[str, type]:
    """Return the item classes of a section's lists of mappings, by YAML name."""
    hints = hints_of(section)
    classes = {key: record_of(hints[item.name]) for key, item in keys_of(section).items()}
    return {key: kind for key, kind in classes.items() if kind}
