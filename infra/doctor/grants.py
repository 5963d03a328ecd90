"""`tpu infra roles ENV`: the commands that grant each account what it asks for.

`--json` is for programs: account → [[role, resource], …], resources as IAM names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from infra.core import names
from infra.core.layer import up_command
from infra.engine.roles import ACCOUNTS, roles
from infra.engine.settings import from_file
from infra.google.role import Role
from infra.layers.gke.settings import GkeSettings
from infra.layers.monitoring.settings import MonitoringSettings
from infra.layers.pipeline.settings import PipelineSettings
from infra.layers.storage.names import controller_bucket, service_account_id
from infra.layers.storage.settings import StorageSettings
from infra.settings.schema import Settings


def resource(role: Role, settings: Settings) -> str:
    """Return the full name of the resource that a role is granted on."""
    return {
        "project": f"projects/{settings.project}",
        "hosts' account": service_account_id(settings),
        "checkpoint bucket": f"projects/_/buckets/{settings[StorageSettings].bucket_name}",
        "controller's bucket": f"projects/_/buckets/{controller_bucket(settings)}",
        "GKE nodes' account": _nodes_account(settings),
        "pipeline's accounts": _runs_account(settings),
        "billing account": f"billingAccounts/{_billing_account(settings)}",
    }[role.on]


def _nodes_account(settings: Settings) -> str:
    gke = settings.get(GkeSettings)
    email = names.account_email(settings, gke.node_account_id if gke else "")
    return f"projects/{settings.project}/serviceAccounts/{email}"


def _runs_account(settings: Settings) -> str:
    """Return the function's account; those of its build and of the trigger are named alike."""
    pipeline = settings.get(PipelineSettings)
    email = names.account_email(settings, f"{pipeline.name if pipeline else ''}-run")
    return f"projects/{settings.project}/serviceAccounts/{email}"


def _billing_account(settings: Settings) -> str:
    monitoring = settings.get(MonitoringSettings)
    return str(monitoring.billing_account) if monitoring else ""


def command(role: Role, settings: Settings, member: str = "MEMBER") -> str:
    """Return the command that grants a role to a member, e.g. `user:ada@example.com`."""
    flags = f"--member={member} --role={role.name}"
    if role.on == "project":
        return f"gcloud projects add-iam-policy-binding {settings.project} {flags}"
    if role.on == "hosts' account":
        return f"{member} in storage:serviceAccountUsers, then {up_command('storage', settings.environment)}"
    if role.on == "GKE nodes' account":
        return f"{member} in gke:nodeAccountUsers, then {up_command('gke', settings.environment)}"
    if role.on == "pipeline's accounts":
        return f"{member} in pipeline:accountUsers, then {up_command('pipeline', settings.environment)}"
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
