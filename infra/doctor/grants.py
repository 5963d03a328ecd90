"""`tpu infra roles ENV`: the commands that grant each account what it asks for.

`--json` is for programs: account → [[role, resource], …], resources as IAM names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from infra.core.acting import acted_as, addresses, admission
from infra.engine.roles import ACCOUNTS, roles
from infra.engine.settings import from_file
from infra.google.role import Role
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.storage.names import controller_bucket, steps_bucket
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def resource(role: Role, settings: Settings) -> str:
    """Return the full name of the resource that a role is granted on."""
    if owned := acted_as(role, settings):
        return f"projects/{settings.project}/serviceAccounts/{addresses(owned[1], settings)[0]}"
    return {
        "project": f"projects/{settings.project}",
        "checkpoint bucket": f"projects/_/buckets/{settings[StorageSettings].bucket_name}",
        "controller's bucket": f"projects/_/buckets/{controller_bucket(settings)}",
        "steps bucket": f"projects/_/buckets/{steps_bucket(settings)}",
        "billing account": f"billingAccounts/{_billing_account(settings)}",
    }[role.on]


def _billing_account(settings: Settings) -> str:
    monitoring = settings.get(MonitoringSettings)
    return str(monitoring.billing_account) if monitoring else ""


def command(role: Role, settings: Settings, member: str = "MEMBER") -> str:
    """Return the command that grants a role to a member, e.g. `user:ada@example.com`."""
    flags = f"--member={member} --role={role.name}"
    if role.on == "project":
        return f"gcloud projects add-iam-policy-binding {settings.project} {flags}"
    if owned := acted_as(role, settings):
        return admission(*owned, settings, member)
    if role.on == "billing account":
        return f"gcloud billing accounts add-iam-policy-binding {_billing_account(settings)} {flags}"
    bucket = resource(role, settings).rpartition("/")[2]
    return f"gcloud storage buckets add-iam-policy-binding gs://{bucket} {flags}"


def show(environment: str, root: Path, *, as_json: bool) -> int:
    """Print all of them; 0."""
    settings = from_file(environment, root)
    if as_json:
        granted = {
            who: [(role.name, resource(role, settings)) for role in roles(who, settings)] for who in ACCOUNTS
        }
        print(json.dumps(granted))
        return 0
    print("\n\n".join("\n".join(_lines(who, settings)) for who in ACCOUNTS))
    return 0


def _lines(account: str, settings: Settings) -> Iterator[str]:
    yield f"# {account}; those on buckets and the hosts' account once storage is up"
    for role in roles(account, settings):
        yield f"{command(role, settings)}   # {role.why}"
