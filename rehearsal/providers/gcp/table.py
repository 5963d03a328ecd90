"""A resource type as the stand-in knows it: its API, its requests, and where it isn't as generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from rehearsal.providers.gcp import generate
from rehearsal.providers.gcp.field import Field
from rehearsal.providers.gcp.generate import Exceptions


@dataclass(frozen=True)
class Service:
    """A Google API: `base` is its root with version, `product` what overrides it.

    `GOOGLE_<PRODUCT>_CUSTOM_ENDPOINT` and the provider setting `<product>CustomEndpoint`
    replace `base` whole, as with the official provider. `api`: its discovery document where `base` doesn't
    name it.
    """

    product: str
    base: str
    api: str = ""

    @property
    def variable(self) -> str:
        """Name of the environment variable that replaces `base`."""
        return f"GOOGLE_{self.product}_CUSTOM_ENDPOINT"

    @property
    def setting(self) -> str:
        """Name of the provider's setting that replaces `base`."""
        first, *rest = self.product.lower().split("_")
        return first + "".join(word.capitalize() for word in rest) + "CustomEndpoint"

    @property
    def document(self) -> str:
        """Name of the API's discovery document: `compute.beta`."""
        parts = urlsplit(self.base)
        host, version = parts.netloc.partition(".")[0], parts.path.strip("/").rpartition("/")[2]
        return self.api or f"{host.rpartition('-')[2]}.{version}"


@dataclass(frozen=True)
class Update:
    """A request of an update, sent if one of `fields` has changed: names in one text, `*` for all.

    `changed_only` leaves out those that haven't changed. `mask`: the query parameter that names the changed
    ones. `extra`: further body entries, `{…}` filled from the resource's
    properties. `wrap`: the body stands under this name. `whole`: the body holds what can't change too.
    `fingerprint`: read the resource first and send its `fingerprint`, which the API compares.
    """

    fields: str = "*"
    method: str = "PATCH"
    suffix: str = ""
    changed_only: bool = False
    mask: str = ""
    mask_repeats: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)
    wrap: str = ""
    whole: bool = False
    fingerprint: bool = False


@dataclass(frozen=True)
class Table:
    """A resource type: its requests, and exceptions from what its properties are by the SDK and the document.

    `item` is its path under the service's base with `{property}` for parts, `collection` what it is posted to
    (default: all of `item` but its last part); the queries likewise. `assigned`: properties that the answer
    to the creation gives, by their names there. `quoted`: parts of `item` that are escaped whole.
    `client_library`: the official provider calls this API through Google's Go library, which adds
    `prettyPrint=false`. `looks`: reads after a creation before the one that counts. `looks_first`: a creation
    begins with a read, which finds nothing.
    """

    token: str
    service: Service
    item: str
    updates: tuple[Update, ...] = ()
    exceptions: Exceptions = field(default_factory=dict)
    schema: str = ""
    collection: str = ""
    id: str = ""
    create_method: str = "POST"
    create_query: Mapping[str, str] = field(default_factory=dict)
    create_has_body: bool = True
    create_wrap: str = ""
    delete_query: Mapping[str, str] = field(default_factory=dict)
    assigned: Mapping[str, str] = field(default_factory=dict)
    quoted: tuple[str, ...] = ()
    client_library: bool = False
    looks: int = 0
    looks_first: bool = False
    read_before_delete: bool = False
    delete_before_replace: bool = False

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The type's properties."""
        mutable = (
            "*" if any(u.fields == "*" for u in self.updates) else " ".join(u.fields for u in self.updates)
        )
        path = f"{urlsplit(self.service.base).path}{self.item}"
        about = (self.token, self.service.document, path, mutable)
        return generate.fields(*about, self.exceptions, self.schema, self.client_library)

    @property
    def label(self) -> str:
        """The type's short name: `V2Vm`."""
        return self.token.rsplit(":", 1)[-1]

    @property
    def auto_name(self) -> bool:
        """True if a resource without a name is given one."""
        return any(f.name == "name" and not f.required for f in self.inputs)

    @cached_property
    def inputs(self) -> tuple[Field, ...]:
        """The properties that a program can set."""
        return tuple(f for f in self.fields if not f.output)

    def sent(self, update: Update) -> list[Field]:
        """Return the properties of an update request."""
        names = update.fields.split()
        if update.fields == "*":
            return [f for f in self.inputs if update.whole or not f.replaces]
        return [f for f in self.fields if f.name in names]

    def field(self, name: str) -> Field:
        """Return the property called `name`."""
        return next(f for f in self.fields if f.name == name)


COMPUTE = Service("COMPUTE", "https://compute.googleapis.com/compute/beta/")
STORAGE = Service("STORAGE", "https://storage.googleapis.com/storage/v1/")
IAM = Service("IAM", "https://iam.googleapis.com/v1/")
KMS = Service("KMS", "https://cloudkms.googleapis.com/v1/")
RESOURCE_MANAGER = Service("RESOURCE_MANAGER", "https://cloudresourcemanager.googleapis.com/v1/")
SERVICE_USAGE = Service("SERVICE_USAGE", "https://serviceusage.googleapis.com/v1/")


def basename(link: Any) -> Any:
    """Last part of a link or path: `us-east5-b` from `https://…/zones/us-east5-b`."""
    return link.rsplit("/", 1)[-1] if isinstance(link, str) else link


def same_link(wanted: Any, current: Any) -> bool:
    """Return True if two spellings name one resource: full link, `projects/…` path or bare name."""
    if not (isinstance(wanted, str) and isinstance(current, str)):
        return bool(wanted == current)
    if "/" not in wanted or "/" not in current:
        return bool(basename(wanted) == basename(current))
    return "projects/" + wanted.rpartition("projects/")[2] == "projects/" + current.rpartition("projects/")[2]


def same_basename(wanted: Any, current: Any) -> bool:
    """Return True if two values end in the same part, e.g. a region and its link."""
    return bool(basename(wanted) == basename(current))
