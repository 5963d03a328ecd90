"""A resource type as the stand-in knows it: its API, its requests, and where it isn't as generated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import urlsplit

from rehearsal.providers.gcp import generate, terraform
from rehearsal.providers.gcp.field import Field
from rehearsal.providers.gcp.generate import Exceptions


@dataclass(frozen=True)
class Service:
    """A Google API, called `product` by the provider, whose table has its root and what replaces the root.

    `version`: the API's version where the provider calls another one than its root names. `document`: the
    API's discovery document where the root doesn't name it.
    """

    product: str
    version: str = ""
    document: str = ""

    @property
    def variable(self) -> str:
        """Name of the environment variable that replaces the root."""
        return terraform.product(self.product).variable

    @property
    def setting(self) -> str:
        """Name of the provider's setting that replaces the root."""
        return terraform.product(self.product).setting

    @property
    def base(self) -> str:
        """Root URL, with the version and a slash."""
        return self.under(terraform.product(self.product).base)

    def under(self, root: str) -> str:
        """Return a root with the version that is called: Google's Go libraries have theirs."""
        root = root if root.endswith("/") else f"{root}/"
        return f"{root.removesuffix('/').rpartition('/')[0]}/{self.version}/" if self.version else root

    @property
    def discovered(self) -> str:
        """Name of the API's discovery document: `compute.beta`."""
        parts = urlsplit(self.base)
        host, version = parts.netloc.partition(".")[0], parts.path.strip("/").rpartition("/")[2]
        return self.document or f"{host}.{version}"


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
    begins with a read, which finds nothing. `unsent`: properties whose changes the official provider plans
    and sends in no request.
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
    unsent: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The type's properties."""
        path = f"{urlsplit(self.service.base).path}{self.item}"
        about = (self.token, self.service.discovered, path)
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

    @cached_property
    def sendable(self) -> frozenset[str]:
        """Names of the properties that an update can change, the provider's own included."""
        sent = {f.name for update in self.updates for f in self.sent(update)}
        return frozenset({*sent, *self.unsent, *(f.name for f in self.inputs if f.place is None)})

    def sent(self, update: Update) -> list[Field]:
        """Return the properties of an update request."""
        names = update.fields.split()
        if update.fields == "*":
            return [f for f in self.inputs if update.whole or not f.replaces]
        return [f for f in self.fields if f.name in names]

    def field(self, name: str) -> Field:
        """Return the property called `name`."""
        return next(f for f in self.fields if f.name == name)


COMPUTE = Service("compute")
STORAGE = Service("storage")
IAM = Service("iambeta")
KMS = Service("kms")
RESOURCE_MANAGER = Service("resourcemanager")
SERVICE_USAGE = Service("serviceusage", "v1")
