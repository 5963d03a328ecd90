"""Prerequisites of a first update: the data's snapshot, and the roles of whoever brings layers up."""

from __future__ import annotations

from collections.abc import Iterator

from infra.core.acting import acted_as, addresses, admission, members
from infra.core.environment import layers_on
from infra.core.layer import Layer
from infra.core.secrets import UNSEEN
from infra.doctor.finding import MISSING, OK, OPTIONAL, Finding
from infra.engine.roles import PLATFORM, roles
from infra.google.client import Client, RequestError, member, permissions_held
from infra.google.failures import Kind
from infra.google.role import ACT_AS, Role
from infra.layers.data.names import snapshot_id
from infra.settings.schema import Settings


def snapshot(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report whether the snapshot is there that the data disks are made from.

    https://cloud.google.com/compute/docs/reference/rest/v1/snapshots/get
    """
    id_ = snapshot_id(settings)
    if id_ is None:
        yield Finding(what, OK, "the settings name none: there are no data disks")
        return
    try:
        exists = google.exists(f"https://compute.googleapis.com/compute/v1/{id_}")
    except RequestError as error:
        if error.failure.kind is not Kind.PERMISSION:
            raise
        yield Finding(what, OPTIONAL, f"{id_}: this login can't look; only bringing `data` up needs it")
        return
    if exists:
        yield Finding(what, OK, id_)
    else:
        name, project = id_.rpartition("/")[2], id_.split("/")[1]
        command = f"gcloud compute snapshots create {name} --project={project} --source-disk=DISK"
        own = f"of your own files: tpu data snapshot {settings.environment} SOURCE --name {name}"
        yield Finding(what, MISSING, f"no {id_}", f"{command}; {own}; or take data:snapshot out")


def updates(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the roles that bringing all layers up needs beyond those of this login, which needn't do so."""
    needed = [role for role in roles(PLATFORM, settings) if role.on == "project"]
    url = f"https://cloudresourcemanager.googleapis.com/v1/projects/{google.project}"
    by_role = [(role.name, {*filter(_of_projects, role.permissions)}) for role in needed]
    needed_permissions = set().union(*(permissions for _, permissions in by_role))
    granted = permissions_held(google, url, needed_permissions.union(ACT_AS.permissions))
    unlisted = [] if granted.issuperset(ACT_AS.permissions) else [*_unlisted(google, settings, what)]
    yield from unlisted
    if lacking := sorted({name for name, permissions in by_role if permissions - granted}):
        detail = f"this login can't bring every layer up: it lacks permissions of {', '.join(lacking)}"
        yield Finding(what, OPTIONAL, detail, f"tpu infra roles {settings.environment} prints the commands")
    elif not unlisted:
        yield Finding(
            what, OK, f"this login can bring every layer up: {len(needed_permissions)} permissions granted"
        )


def _unlisted(google: Client, settings: Settings, what: str) -> Iterator[Finding]:
    """Report the accounts that this login has to act as, and whose setting doesn't name it.

    A group that it is in is known once the accounts are there.
    """
    login = member(google)
    for role in roles(PLATFORM, settings):
        owned = acted_as(role, settings)
        if not owned or login in (named := members(owned[1], settings)):
            continue
        layer, acting = owned
        url = f"https://iam.googleapis.com/v1/projects/{google.project}/serviceAccounts/"
        if not all(_held(google, url + address, role) for address in addresses(acting, settings)):
            perhaps = f", unless it is of {', '.join(named)}" if named else ""
            needing = [other.name for other in layers_on(settings) if _has(other, role)]
            rule = f"it may not act as the {acting.on}{perhaps}"
            detail = f"this login can't bring {', '.join(needing)} up: {rule}"
            yield Finding(what, OPTIONAL, detail, admission(layer, acting, settings, login or "user:YOU"))


def _has(layer: Layer, role: Role) -> bool:
    return any((own.name, own.on) == (role.name, role.on) for own in layer.roles)


def _held(google: Client, account: str, role: Role) -> bool:
    """Return False where no permission of the role is held on an account, or none can be seen."""
    try:
        return bool(permissions_held(google, account, role.permissions))
    except RequestError as error:
        if error.failure.kind not in (Kind.MISSING, *UNSEEN):
            raise
        return False


def _of_projects(permission: str) -> bool:
    """Return True unless an owner has the permission by the policies of new buckets instead.

    https://cloud.google.com/storage/docs/access-control/iam-roles#basic-roles-modifiable
    """
    on_buckets = permission.startswith(("storage.buckets.", "storage.objects."))
    return permission == "storage.buckets.create" or not on_buckets
