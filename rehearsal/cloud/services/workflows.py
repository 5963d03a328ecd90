"""Workflows: definitions and their revisions; workflowexecutions has what is executed.

https://cloud.google.com/workflows/docs/reference/rest/v1/projects.locations.workflows
"""

from __future__ import annotations

import secrets

import yaml

from rehearsal.cloud.collections import Change, Collection, Entry
from rehearsal.cloud.collections.checks import acts_as, default_account, every, not_emulated
from rehearsal.cloud.service import bad_request

_MAX_BYTES = 128 << 10  # https://cloud.google.com/workflows/quotas


def _parses(change: Change) -> None:
    """The source is YAML or JSON with steps, or with a main workflow that has them."""
    source = change.body.get("sourceContents", "")
    if len(source.encode()) > _MAX_BYTES:
        raise bad_request(f"The source is larger than {_MAX_BYTES} bytes.")
    try:
        parsed = yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise bad_request(f"main.yaml: parse error: {error}") from None
    main = parsed.get("main", {}).get("steps") if isinstance(parsed, dict) else parsed
    if not isinstance(main, list) or not main:
        raise bad_request("main.yaml: workflow must have a 'main' with steps, or be a list of steps.")


def _revise(change: Change) -> None:
    """A new revision for a new source or another account."""
    account = f"projects/{change.world.project}/serviceAccounts/"
    change.body["serviceAccount"] = (
        account + (change.body.get("serviceAccount") or default_account(change)).rpartition("/")[2]
    )
    if all(change.old.get(key) == change.body.get(key) for key in ("sourceContents", "serviceAccount")):
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
