"""The vocabulary of the type tables: what a property is called on both sides and when it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Kind(Enum):
    """The shape of a property's value."""

    STRING = auto()
    INT = auto()
    NUMBER = auto()
    BOOL = auto()
    LIST = auto()  # of strings, in order
    SET = auto()  # of strings, order means nothing
    MAP = auto()  # string to string
    LABELS = auto()  # a MAP that is sent together with the provider's default labels
    BLOCK = auto()  # one object (Terraform's list of at most one)
    BLOCKS = auto()  # objects, in order
    BLOCK_SET = auto()  # objects, order means nothing
    ASSET = auto()

    @property
    def zero(self) -> Any:
        """The value that stands for "not set" in outputs, as the official provider fills it in."""
        return _ZEROS.get(self)


_ZEROS: dict[Kind, Any] = {
    Kind.STRING: "",
    Kind.INT: 0,
    Kind.NUMBER: 0,
    Kind.BOOL: False,
    Kind.LIST: [],
    Kind.SET: [],
    Kind.BLOCKS: [],
    Kind.BLOCK_SET: [],
}


class Send(Enum):
    """When a property goes into a request's body."""

    NEVER = auto()
    NONEMPTY = auto()  # only if it has a value other than zero
    GIVEN = auto()  # if the program gave it, zero or not, else as NONEMPTY
    ALWAYS = auto()  # with its zero where there is no value


@dataclass(frozen=True)
class Field:
    """One property of a resource type.

    `rest` is its dotted place in Google's JSON (default: the same name; None: not in the JSON).
    `computed`: where the program gives none, the API's value is kept and is no difference.
    `output`: only the API sets it. `same` tells equal what is spelt differently. `only`: the one value that
    the stand-in can carry out.
    """

    name: str
    kind: Kind = Kind.STRING
    rest: str | None = ""
    fields: tuple[Field, ...] = ()
    required: bool = False
    replaces: bool = False
    computed: bool = False
    output: bool = False
    default: Any = None
    send: Send = Send.NONEMPTY
    send_update: Send | None = None
    same: Callable[[Any, Any], bool] | None = None
    encode: Callable[[Any, Mapping[str, Any]], Any] | None = None
    decode: Callable[[Any], Any] | None = None
    one_of: tuple[str, ...] = ()
    only: Any = None
    conflicts: tuple[str, ...] = ()

    @property
    def place(self) -> str | None:
        """Where the property stands in Google's JSON, dotted; None if nowhere."""
        return self.name if self.rest == "" else self.rest

    @property
    def snake(self) -> str:
        """The property as the official provider's messages spell it."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.name)


@dataclass(frozen=True)
class Service:
    """A Google API: `base` is its root with version, `product` what overrides it.

    `GOOGLE_<PRODUCT>_CUSTOM_ENDPOINT` and the provider setting `<product>CustomEndpoint`
    replace `base` whole, as with the official provider.
    """

    product: str
    base: str

    @property
    def variable(self) -> str:
        """Name of the environment variable that replaces `base`."""
        return f"GOOGLE_{self.product}_CUSTOM_ENDPOINT"

    @property
    def setting(self) -> str:
        """Name of the provider's setting that replaces `base`."""
        first, *rest = self.product.lower().split("_")
        return first + "".join(word.capitalize() for word in rest) + "CustomEndpoint"


@dataclass(frozen=True)
class Update:
    """One request of an update, sent if one of `fields` has changed.

    `sends`: the properties in its body (default: `fields`); `changed_only` leaves out those that
    haven't changed. `mask`: the query parameter that names the changed ones. `extra`: further body
    entries, `{…}` filled from the resource's properties. `fingerprint`: read the resource first and send its
    `fingerprint`, which the API compares.
    """

    fields: tuple[str, ...]
    method: str = "PATCH"
    suffix: str = ""
    sends: tuple[str, ...] = ()
    changed_only: bool = False
    mask: str = ""
    mask_repeats: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    fingerprint: bool = False


@dataclass(frozen=True)
class Table:
    """A resource type: its names on both sides, its properties and its requests.

    `collection` and `item` are paths under the service's base with `{property}` for parts;
    `create_query` likewise. `client_library`: the official provider calls this API through Google's
    Go library, which adds `prettyPrint=false`. `labelled`: has labels that the provider's defaults join.
    `create_first`: properties by which a resource is named are not auto-named, so a replacement is
    made before the old one goes.
    """

    token: str
    service: Service
    collection: str
    item: str
    fields: tuple[Field, ...]
    id: str = ""
    create_query: Mapping[str, str] = field(default_factory=dict)
    create_has_body: bool = True
    client_library: bool = False
    updates: tuple[Update, ...] = ()
    read_before_delete: bool = False
    auto_name: bool = True
    delete_before_replace: bool = False

    @property
    def labelled(self) -> bool:
        """Whether default labels and the attribution label are added."""
        return any(f.kind is Kind.LABELS for f in self.fields)

    @property
    def inputs(self) -> tuple[Field, ...]:
        """The properties that a program can set."""
        return tuple(f for f in self.fields if not f.output)

    def field(self, name: str) -> Field:
        """The property called `name`."""
        return next(f for f in self.fields if f.name == name)


COMPUTE = Service("COMPUTE", "https://compute.googleapis.com/compute/beta/")
STORAGE = Service("STORAGE", "https://storage.googleapis.com/storage/v1/")
TPU = Service("TPU_V2", "https://tpu.googleapis.com/v2alpha1/")
IAM = Service("IAM", "https://iam.googleapis.com/v1/")
KMS = Service("KMS", "https://cloudkms.googleapis.com/v1/")
RESOURCE_MANAGER = Service("RESOURCE_MANAGER", "https://cloudresourcemanager.googleapis.com/v1/")
SERVICE_USAGE = Service("SERVICE_USAGE", "https://serviceusage.googleapis.com/v1/")

DELETION_POLICY = Field(
    "deletionPolicy", rest=None, send=Send.NEVER, computed=True, one_of=("DELETE", "PREVENT", "ABANDON")
)
PROJECT = Field("project", rest=None, computed=True, replaces=True)
NAME = Field("name", replaces=True)
SELF_LINK = Field("selfLink", output=True, decode=lambda link: link and v1_link(link))
CREATED = Field("creationTimestamp", output=True)


def basename(link: Any) -> Any:
    """Last part of a link or path: `us-east5-b` from `https://…/zones/us-east5-b`."""
    return link.rsplit("/", 1)[-1] if isinstance(link, str) else link


def v1_link(link: str) -> str:
    """A compute link as the official provider stores it: beta rewritten to v1."""
    return link.replace("/compute/beta/", "/compute/v1/")


def same_link(one: Any, other: Any) -> bool:
    """Whether two spellings name one resource: full link, `projects/…` path or bare name."""
    if not (isinstance(one, str) and isinstance(other, str)):
        return bool(one == other)
    if "/" not in one or "/" not in other:
        return bool(basename(one) == basename(other))
    return "projects/" + one.rpartition("projects/")[2] == "projects/" + other.rpartition("projects/")[2]


def same_basename(one: Any, other: Any) -> bool:
    """Whether two values end in the same part, e.g. a region and its link."""
    return bool(basename(one) == basename(other))
