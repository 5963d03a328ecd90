"""Executions of workflows. Nothing executes them: one is ACTIVE until it is cancelled.

https://cloud.google.com/workflows/docs/reference/executions/rest
"""

from __future__ import annotations

import json
import uuid

from rehearsal.cloud.collections import Change, Collection, Entry, Verb
from rehearsal.cloud.collections.checks import not_emulated, wrong_state
from rehearsal.cloud.service import bad_request

# What the default view of a list has.
_BASIC = ("name", "createTime", "startTime", "endTime", "duration", "state", "workflowRevisionId")


def _begin(change: Change) -> None:
    not_emulated("disableConcurrencyQuotaOverflowBuffering")(change)
    try:
        json.loads(change.body.get("argument", "{}"))
    except ValueError:
        raise bad_request("The argument must be a string in JSON.") from None
    if change.old:
        return
    workflow = change.resources.find(change.name.partition("/executions/")[0])
    change.body |= {"startTime": change.world.clock.rfc3339(), "workflowRevisionId": workflow["revisionId"]}


def _cancel(change: Change) -> None:
    wrong_state(change, "state", ("ACTIVE", "QUEUED"))
    change.body |= {"state": "CANCELLED", "endTime": change.world.clock.rfc3339()}


def _shown(change: Change) -> None:
    view = change.call.query.get("view") or ("BASIC" if change.call.method_id.endswith(".list") else "FULL")
    if view == "BASIC":
        for key in change.body.keys() - set(_BASIC):
            del change.body[key]


ENTRY = Entry(
    "workflowexecutions",
    ("v1",),
    (
        Collection(
            "workflowexecutions.projects.locations.workflows.executions",
            permission="workflows.executions",
            new_id=lambda *_: str(uuid.uuid4()),
            ready={"state": "ACTIVE"},
            check=_begin,
            shown=_shown,
            verbs={"cancel": Verb(_cancel)},
        ),
    ),
    package="google.cloud.workflows.executions.v1",
)
