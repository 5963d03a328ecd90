"""Workflows: definitions and their revisions; workflowexecutions has what is executed.

https://cloud.google.com/workflows/docs/reference/rest/v1/projects.locations.workflows
"""

from __future__ import annotations

import secrets

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import acts_as, default_account, every, not_emulated
from rehearsal.cloud.core.errors import NotEmulatedError, bad_request
from rehearsal.cloud.services.workflows.engine import SourceError, UncoveredError, parse

# https://cloud.google.com/workflows/docs/use-environment-variables
_MAX_VARIABLES, _MAX_NAME_BYTES, _MAX_VALUE_BYTES = 20, 128, 4 << 10
_REVISED = ("sourceContents", "serviceAccount", "userEnvVars")


def _parses(change: Change) -> None:
    """Return the source is a definition that can run, and the environment one that it may have."""
    try:
        parse(change.body.get("sourceContents", ""))
    except UncoveredError as error:
        raise NotEmulatedError(f"main.yaml: {error}: this") from None
    except SourceError as error:
        raise bad_request(f"main.yaml: {error}") from None
    given = change.body.get("userEnvVars", {})
    if len(given) > _MAX_VARIABLES:
        raise bad_request(f"A workflow has {_MAX_VARIABLES} environment variables at most, not {len(given)}.")
    for key, value in given.items():
        if key.startswith(("GOOGLE", "WORKFLOWS")) or not 0 < len(key.encode()) <= _MAX_NAME_BYTES:
            raise bad_request(f"The environment variable '{key}' can't have this name.")
        if len(value.encode()) > _MAX_VALUE_BYTES:
            raise bad_request(f"The environment variable '{key}' is larger than {_MAX_VALUE_BYTES} bytes.")


def _revise(change: Change) -> None:
    """Return a new revision for a new source, environment or account."""
    account = f"projects/{change.world.project}/serviceAccounts/"
    change.body["serviceAccount"] = (
        account + (change.body.get("serviceAccount") or default_account(change)).rpartition("/")[2]
    )
    if all(change.old.get(key) == change.body.get(key) for key in _REVISED):
        return
    number = int(change.old.get("revisionId", "0").partition("-")[0]) + 1
    change.body["revisionId"] = f"{number:06}-{secrets.token_hex(2)[:3]}"
    change.body["revisionCreateTime"] = change.world.clock.rfc3339()


ENTRY = Entry(
    "workflows",
    ("v1",),
    (
        Collection(
            "workflows.projects.locations.workflows",
            pattern=r"[a-zA-Z](?:[-\w]{0,62}[a-zA-Z0-9])?",
            seconds=5.0,
            ready={"state": "ACTIVE"},
            references=(acts_as("serviceAccount"),),
            check=every(not_emulated("cryptoKeyName", "tags"), _parses, _revise),
        ),
    ),
    package="google.cloud.workflows.v1",
    roles={
        "roles/workflows.admin": ("workflows.*",),
        "roles/workflows.editor": ("workflows.*",),
        "roles/workflows.invoker": (
            "workflows.executions.create",
            "workflows.executions.*",
            "workflows.*.get",
        ),
        "roles/workflows.viewer": ("workflows.*.get", "workflows.*.list"),
    },
)
