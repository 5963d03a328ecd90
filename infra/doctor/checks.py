"""Requirements of an environment at Google and Pulumi, one check for each (a fleet's: fleet/doctor.py).

https://developers.google.com/identity/openid-connect/openid-connect#obtaininguserprofileinformation
https://cloud.google.com/service-usage/docs/reference/rest/v1/services/list
https://cloud.google.com/resource-manager/reference/rest/v1/projects/testIamPermissions
https://cloud.google.com/iam/docs/reference/rest/v1/projects.serviceAccounts/testIamPermissions
https://cloud.google.com/storage/docs/json_api/v1/buckets/testIamPermissions
https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.acceleratorTypes/list
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from infra.catalog import CATALOG
from infra.core.environment import declared_layers, layers_on, required_services
from infra.core.layer import Layer, Offer, off, up_command
from infra.doctor import billing, first, images, quotas, secrets
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.doctor.grants import command
from infra.doctor.report import Check
from infra.engine.environments import shared_names
from infra.engine.pulumi import Pulumi
from infra.engine.recovery.settle import settle_command, unsettled
from infra.engine.roles import ML, roles
from infra.errors import CommandError
from infra.google import client
from infra.google.client import NOBODY, USERINFO, Client, RequestError, or_none, permissions_held
from infra.google.failures import Kind, fix_of
from infra.google.role import On, Role
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.pipeline import handoff
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.queue import team
from infra.layers.storage.names import controller_bucket, service_account_email, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.layers.tpu.published import OF_HOSTS, unpublished
from infra.settings.schema import Settings, keys_of
from infra.slices.nodes import Node
from views.counts import counted

_USAGE = "https://serviceusage.googleapis.com/v1"


@dataclass(frozen=True)
class Target:
    """An environment, the slices that are meant, and how Google is asked."""

    settings: Settings
    nodes: Sequence[Node]
    google: Client

    @property
    def needed(self) -> list[Node]:
        """These slices, and the one that a run of the pipeline asks for."""
        desired = self.settings.get(PipelineSettings)
        trains = desired is not None and desired.train == "fleet"
        return [*self.nodes, *([handoff.node(self.settings)] if trains else ())]

    @property
    def offers(self) -> set[Offer]:
        """Offers that the zones must have for these slices, and for those that other layers keep."""
        offers = {
            Offer(zone, node.kind.name, node.runtime_version) for node in self.needed for zone in node.places
        }
        return offers.union(*(layer.hooks.offers(self.settings) for layer in layers_on(self.settings)))

    def up(self, layer: str) -> str:
        """Return the command that brings a layer up."""
        return up_command(layer, self.settings.environment)


def checks(target: Target) -> list[tuple[str, Check]]:
    """Return all checks by name."""
    project, email = target.google.project, service_account_email(target.settings)
    on = layers_on(target.settings)
    disabled = [layer for layer in declared_layers(target.settings) if layer not in on]
    monitoring = target.settings.get(MonitoringSettings)
    budget = monitoring is not None and monitoring.billing_account is not None
    zones = sorted(
        {zone for node in target.needed for zone in node.spread} | {offer.zone for offer in target.offers}
    )

    def may(on: On, url: str, what: str) -> Check:
        needed = [role for role in roles(ML, target.settings) if role.on == on]
        return partial(_permissions, target, needed, url, what)

    def bucket(on: On, name: str) -> Check:
        return may(on, client.bucket_url(name), f"gs://{name}")

    return [
        ("login", partial(_login, target)),
        ("names", partial(_names, target)),
        ("APIs", partial(_services, target)),
        ("permissions", may(
            "project", f"https://cloudresourcemanager.googleapis.com/v1/projects/{project}", project,
        )),
        ("updates", partial(first.updates, target.google, target.settings)),
        ("snapshot", partial(first.snapshot, target.google, target.settings)),
        ("host account", may(
            "hosts' account",
            f"https://iam.googleapis.com/v1/projects/{project}/serviceAccounts/{email}", email,
        )),
        ("bucket", bucket("checkpoint bucket", target.settings[StorageSettings].bucket_name)),
        ("controller's bucket", bucket("controller's bucket", controller_bucket(target.settings))),
        ("steps bucket", bucket("steps bucket", steps_bucket(target.settings))),
        *([("secrets", partial(secrets.check, target.google, target.settings))]
          if target.settings[StorageSettings].secrets or team.secret_names(target.settings) else ()),
        *([("images", partial(images.check, target.google, target.settings))]
          if target.settings[StorageSettings].repositories else ()),
        *((f"needs {layer.name}", partial(_lacking, target, layer)) for layer in on if layer.hooks.lacking),
        ("bundle", partial(_bundle, target, OF_HOSTS, {node.bundle for node in target.nodes})),
        *((f"bundle {layer.name}", partial(_bundle, target, layer.hooks.bundle.key, None))
          for layer in on if layer.hooks.bundle),
        *((f"stack {layer.name}", partial(_stack, target, layer.name)) for layer in on),
        *((f"stack {layer.name}", partial(_off, target, layer.name)) for layer in disabled),
        *((f"conflicts {layer.name}", partial(_conflicts, target, layer)) for layer in on),
        *((f"zone {zone}", partial(_zone, target, zone)) for zone in zones),
        *([("billing account", partial(billing.check, target.google, target.settings))] if budget else ()),
        ("quota", partial(
            quotas.check, target.google, target.needed,
            [use for layer in on for use in layer.hooks.quotas(target.settings)],
        )),
    ]  # fmt: skip


def _login(target: Target, what: str) -> Iterator[Finding]:
    try:
        account = target.google.json("GET", USERINFO).get("email")
    except RequestError as error:
        failure, account = error.failure, ""
        if failure.kind is Kind.LOGIN and re.search(NOBODY, failure.message):
            yield Finding(what, MISSING, failure.message, fix_of(Kind.LOGIN))
            return
        if failure.kind not in (Kind.LOGIN, Kind.PERMISSION):  # those are of one that gives no address
            raise
    yield Finding(what, OK, account or "valid; it doesn't say whose it is")


def _names(target: Target, what: str) -> Iterator[Finding]:
    """Report names that another environment's file has, too."""
    problems, unread = shared_names(target.settings)
    for problem in problems:
        yield Finding(what, MISSING, f"{problem.path} = {problem.value}: {problem.rule}", problem.fix)
    for environment in unread:
        detail = f"Pulumi.{environment}.yaml has problems, so its names aren't compared"
        yield Finding(what, OPTIONAL, detail, f"tpu plan {environment} lists them")
    if not problems and not unread:
        yield Finding(what, OK, "no other environment of this folder uses its names")


def _services(target: Target, what: str) -> Iterator[Finding]:
    desired, url = required_services(target.settings), f"{_USAGE}/projects/{target.google.project}/services"
    listed = target.google.items(url, "services", {"filter": "state:ENABLED", "pageSize": "200"})
    if off := sorted(set(desired) - {str(service.get("name")).rpartition("/")[2] for service in listed}):
        fix = f"{target.up('storage')}, which enables them"
        yield Finding(what, MISSING, f"off: {', '.join(off)}", fix)
    else:
        yield Finding(what, OK, f"all {len(desired)} are on")


def _permissions(target: Target, asked_for: list[Role], url: str, of: str, what: str) -> Iterator[Finding]:
    """Report the permissions of some roles that the account lacks on a resource."""
    desired = {permission for role in asked_for for permission in role.permissions}
    held = or_none(lambda: permissions_held(target.google, url, desired))
    if held is None:
        yield Finding(what, MISSING, f"no {of}", target.up("storage"))
        return
    lacking = {
        role: [permission for permission in role.permissions if permission not in held] for role in asked_for
    }
    for role, permissions in lacking.items():
        if permissions:
            missing = f"not granted: {', '.join(permissions)} ({role.name} holds it)"
            yield Finding(what, MISSING, missing, command(role, target.settings, "user:YOU"))
    if not any(lacking.values()):
        yield Finding(what, OK, f"{counted(len(desired), 'permission')} granted")


def _lacking(target: Target, layer: Layer, what: str) -> Iterator[Finding]:
    """Report what a layer uses, no layer makes, and isn't at Google."""
    problems = list(layer.hooks.lacking(target.settings, target.google)) if layer.hooks.lacking else []
    for problem in problems:
        yield Finding(what, MISSING, f"{problem.path} = {problem.value}: {problem.rule}", problem.fix)
    if not problems:
        yield Finding(what, OK, "what it needs beside the layers is there")


def _recorded(settings: Settings, key: str) -> str | None:
    """Return the id of a bundle, by its setting."""
    section, _, name = key.partition(":")
    (layer,) = (layer for layer in settings.layers_on if layer.name == section)
    recorded: str | None = getattr(settings[layer.settings], keys_of(layer.settings)[name].name)
    return recorded


def _bundle(target: Target, key: str, bundles: set[str | None] | None, what: str) -> Iterator[Finding]:
    """Report whether bundles are published: given ones, or the one in the setting `key`."""
    recorded = _recorded(target.settings, key)
    bucket = target.settings[StorageSettings].bucket_name
    missing = unpublished(
        target.settings,
        {recorded} if bundles is None else bundles,
        bucket,
        lambda name: target.google.exists(client.object_url(bucket, name)),
        key,
    )
    if missing and key == OF_HOSTS and recorded is None:
        up = f"tpu up {target.settings.environment}"
        yield Finding(what, MISSING, missing[0], f"{up}, which publishes it once its bucket is there")
    elif missing:
        yield Finding(what, MISSING, *missing)
    else:
        yield Finding(what, OK, f"{(recorded or '')[:12]}… is published")


def _stack(target: Target, layer: str, what: str) -> Iterator[Finding]:
    environment = target.settings.environment
    held = len(Pulumi(environment).state(layer))
    remains = unsettled(environment, layer)
    for line in remains:
        yield Finding(what, MISSING, line, settle_command(layer, environment))
    if remains:
        return
    if held:
        yield Finding(what, OK, f"holds {counted(held, 'resource')}")
    else:
        yield Finding(what, MISSING, "not up", target.up(layer))


def _off(target: Target, layer: str, what: str) -> Iterator[Finding]:
    """Report resources of a layer that is off."""
    environment = target.settings.environment
    try:
        held = len(Pulumi(environment).state(layer))
    except CommandError:
        return  # the layers that are on say so
    if held:
        output, _, fix = off(layer, environment).partition("\n    fix: ")
        yield Finding(what, OPTIONAL, f"holds {counted(held, 'resource')}, and {output}", fix)


def _conflicts(target: Target, layer: Layer, what: str) -> Iterator[Finding]:
    """Report resources at Google with our names that the stack doesn't hold."""
    held = {resource.get("id") for resource in Pulumi(target.settings.environment).state(layer.name)}
    missing = {id_: url for id_, url in layer.at_google(target.settings).items() if id_ not in held}
    conflicting = [id_ for id_, url in missing.items() if target.google.exists(url)]
    imported = layer.hooks.imported(target.settings)
    for id_ in conflicting:
        fix = "import it, or rename; delete it only if no other environment or person uses it"
        if id_ in imported:
            fix = f"{imported[id_]}, then {target.up(layer.name)}"
        output = f"{id_} is at Google, and the stack doesn't hold it: up would end with 409"
        yield Finding(what, MISSING, output, fix)
    if not conflicting:
        yield Finding(what, OK, "nothing else at Google has its names")


def _zone(target: Target, zone: str, what: str) -> Iterator[Finding]:
    def offered(collection: str, key: str) -> set[str]:
        url = target.google.tpu(f"locations/{zone}/{collection}")
        listed = or_none(lambda: [*target.google.items(url, collection, {"pageSize": "1000"})])
        return {str(item.get(key)) for item in listed or ()}

    needed = [offer for offer in target.offers if offer.zone == zone]
    kinds, images = {offer.accelerator_type for offer in needed}, {offer.image for offer in needed}
    elsewhere = f"other zones; known with v6e: {', '.join(CATALOG.zones)}"
    setting = f"tpu:runtimeVersion: {CATALOG.default_runtime}"
    types, versions = offered("acceleratorTypes", "type"), offered("runtimeVersions", "version")
    lacking = [
        *(("accelerator type", name, elsewhere) for name in sorted(kinds - types)),
        *(("runtime version", name, setting) for name in sorted(images - versions)),
    ]
    for kind, name, fix in lacking:
        yield Finding(what, MISSING, f"offers no {kind} {name} to this project", fix)
    if not lacking:
        yield Finding(what, OK, f"offers {', '.join(sorted(kinds | images))}")
