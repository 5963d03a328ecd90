"""The IAM API: service accounts, and the custom roles of a project.

https://cloud.google.com/iam/docs/creating-custom-roles: a deleted role can be undeleted for 7 days; after
them it and its bindings are gone, and for 30 days more its id can't be used again. A project's
role holds no permission on organizations, folders or billing accounts.
"""

from __future__ import annotations

import re

from google_facts import roles
from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.core import constraints
from rehearsal.cloud.core.errors import ApiError, NotEmulatedError, bad_request
from rehearsal.cloud.core.world import World

UNDELETE_S, REUSE_S = 7 * 86400.0, 37 * 86400.0  # since the deletion
_ACCOUNT, _ROLE = "iam.projects.serviceAccounts", "iam.projects.roles"
_ACCOUNT_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_PERMISSION = re.compile(r"[a-z][a-zA-Z]*\.[a-zA-Z]+\.[a-zA-Z]+")
_ALPHA = "ALPHA"  # of a role without a stage, and never shown


def _address(world: World, name: str) -> str:
    """Return the full name of a new account, by its e-mail address."""
    return f"{name}@{world.project}.iam.gserviceaccount.com"


def _named(world: World, name: str) -> str:
    """Return the full name by e-mail address, also where the path has `-` or a unique id instead."""
    project, _, account = name.removeprefix("projects/").partition("/serviceAccounts/")
    parent = f"projects/{world.project if project == '-' else project}/serviceAccounts/"
    if account.isdigit():
        for full, body in world.directory.items():
            if full.startswith(parent) and body["uniqueId"] == account:
                return full
    return parent + account


def _check_account(change: Change) -> None:
    if change.old:
        return
    constraints.require(change.world, "iam.disableServiceAccountCreation")
    account_id, number = change.id.partition("@")[0], str(next(change.resources.numbers))
    if not 6 <= len(account_id) <= 30:
        raise bad_request(f'The account ID "{account_id}" does not have a length between 6 and 30.')
    if not _ACCOUNT_ID.fullmatch(account_id):
        why = f"must match the regular expression {_ACCOUNT_ID.pattern}."
        raise bad_request(f'The account ID "{account_id}" {why}')
    unique = {"uniqueId": f"10{number}", "oauth2ClientId": f"11{number}", "etag": "MDEwMjE5MjA="}
    change.body |= {"projectId": change.world.project, "email": change.id, **unique}


def _show_later(change: Change) -> None:
    change.world.show_later(change.name, change.world.lags.account_s)


def _forget_account(change: Change) -> None:
    change.resources.iam.forget_account(change.old["email"], change.old["uniqueId"])


def _deleted_at(change: Change) -> dict[str, float]:
    """Return times of deletion by role."""
    return change.world.private.setdefault(_ROLE, {})


def _not_deleted(world: World, name: str) -> str:
    """Return the name of a new role; ApiError 400 for that of a deleted one."""
    if world.directory.get(name, {}).get("deleted"):
        raise _marked(name)
    return name


def _marked(name: str) -> ApiError:
    return _wrong_state(f"You can't use {name}, which has been marked for deletion.")


def _check_role(change: Change) -> None:
    """Define what a role grants; ApiError for what Google refuses."""
    body = change.body
    if not change.old:
        since = _deleted_at(change).pop(change.name, float("-inf"))
        if change.world.clock.now() < since + REUSE_S:
            _deleted_at(change)[change.name] = since
            raise _marked(change.name)
        if change.sent.get("name"):
            raise bad_request("The role name must not be set.")
    elif change.old.get("deleted") and body.get("deleted"):
        raise _marked(change.name)
    for permission in body.get("includedPermissions") or ():
        exists = roles.is_permission(permission)
        if not _PERMISSION.fullmatch(permission) or exists is False or roles.above_projects(permission):
            raise bad_request(f"Permission {permission} is not valid.")
        if exists is None:
            raise NotEmulatedError(f"Permission {permission}")
    if len(body.get("title", "").encode()) > 100:
        raise bad_request("The role's title has more than 100 bytes.")
    off = body.get("deleted") or body.get("stage") == "DISABLED"
    change.resources.iam.define_role(change.name, () if off else body.get("includedPermissions", ()))


def _delete_role(change: Change) -> None:
    change.body["deleted"] = True
    now = _deleted_at(change)[change.name] = change.world.clock.now()

    async def purge() -> None:
        await change.world.clock.sleep(UNDELETE_S)
        if _deleted_at(change).get(change.name) == now and change.name in change.world.directory:
            change.resources.drop(change.name)
            change.resources.iam.forget_role(change.name)

    change.finish.append(lambda: change.world.spawn(purge()))


def _undelete_role(change: Change) -> None:
    if not change.body.pop("deleted", False):
        raise _wrong_state(f"You can't undelete {change.name}, which isn't deleted.")
    del _deleted_at(change)[change.name]


def _show_role(change: Change) -> None:
    if change.body.get("stage") == _ALPHA:
        del change.body["stage"]
    listed = change.call.method_id == f"{_ROLE}.list"
    if listed and change.call.query.get("view") != "FULL":
        change.body.pop("includedPermissions", None)


def _lists_role(change: Change) -> bool:
    return bool(change.call.query.get("showDeleted")) or not change.old.get("deleted")


def _wrong_state(text: str) -> ApiError:
    return ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")


ENTRY = Entry(
    "iam",
    ("v1",),
    (
        Collection(
            _ACCOUNT,
            alias=_named,
            named=_address,
            omit=("update",),
            mutable=("displayName", "description"),
            check=_check_account,
            created=_show_later,
            deleted=_forget_account,
            not_found="Unknown service account: {id}",
            exists="Service account {local} already exists within project {parent}.",
        ),
        Collection(
            _ROLE,
            pattern=r"[a-zA-Z0-9_.]{3,64}",
            named=_not_deleted,
            permissions={"undelete": "iam.roles.undelete"},
            mutable=("title", "description", "includedPermissions", "stage"),
            check=_check_role,
            shown=_show_role,
            listed=_lists_role,
            verbs={"delete": Verb(_delete_role), "undelete": Verb(_undelete_role)},
            not_found="The role named {name} was not found.",
            exists="A role named {id} in {parent} already exists.",
        ),
    ),
)
