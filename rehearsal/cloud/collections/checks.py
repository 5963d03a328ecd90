"""Checks that several entries share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rehearsal.cloud.collections.change import Change
from rehearsal.cloud.collections.entry import KEEP, Hook, Reference
from rehearsal.cloud.collections.shape import values
from rehearsal.cloud.core.errors import ApiError, NotEmulatedError, bad_request
from rehearsal.cloud.iam.iam import compute_account

# Names of most resources, network tags included (RFC 1035).
NAME = r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LABEL = {"key": re.compile(r"[a-z][-_a-z0-9]{0,62}"), "value": re.compile(r"[-_a-z0-9]{0,63}")}


def wrong_labels(labels: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Yield key, value and "key" or "value" for each part of a label that is malformed.

    https://cloud.google.com/compute/docs/labeling-resources#restrictions
    """
    for key, value in labels.items():
        for part, text in (("key", key), ("value", value)):
            if not _LABEL[part].fullmatch(str(text)):
                yield key, value, part


def acts_as(field: str) -> Reference:
    """Return the reference of a field with the service account of a resource, by e-mail address or full name.

    Setting it needs iam.serviceAccounts.actAs (https://cloud.google.com/iam/docs/attach-service-accounts).
    """
    short = "projects/{project}/serviceAccounts/{id}"
    accounts = ("iam.projects.serviceAccounts",)
    return Reference(field, accounts, permission="iam.serviceAccounts.actAs", on_delete=KEEP, short=short)


def topic(field: str) -> Reference:
    """Return the reference of a field with a Pub/Sub topic, which can be deleted all the same."""
    return Reference(field, ("pubsub.projects.topics",), on_delete=KEEP)


def network(field: str) -> Reference:
    """Return the reference of a field with a network, by its full or its short name."""
    return Reference(field, ("compute.networks",), short="projects/{project}/global/networks/{id}")


def subnetwork(field: str) -> Reference:
    """Return the reference of a field with a subnetwork of the resource's region, by full or short name."""
    short = "projects/{project}/regions/{region}/subnetworks/{id}"
    return Reference(field, ("compute.subnetworks",), short=short)


def default_account(change: Change) -> str:
    """Return the Compute Engine default service account, which most products use by default.

    ApiError 403 unless the caller may act as it.
    """
    email = compute_account(change.world)
    name = f"projects/{change.world.project}/serviceAccounts/{email}"
    change.resources.iam.require(change.call.principal, "iam.serviceAccounts.actAs", name)
    return email


def not_emulated(*fields: str) -> Hook:
    """Refuse, as not emulated, a resource with one of these dotted fields."""

    def check(change: Change) -> None:
        for field in fields:
            if values(change.sent, field):
                raise NotEmulatedError(f"{change.collection.method}: {field}")

    return check


def one_of(*fields: str) -> Hook:
    """Refuse a resource that hasn't exactly one of these dotted fields (a required `oneof`)."""

    def check(change: Change) -> None:
        present = [field for field in fields if values(change.body, field)]
        if len(present) != 1:
            raise bad_request(f"Exactly one of {', '.join(fields)} must be set, not {len(present)}.")

    return check


def every(*hooks: Hook) -> Hook:
    """Run one hook after the other."""

    def run(change: Change) -> None:
        for hook in hooks:
            hook(change)

    return run


def wrong_state(change: Change, field: str, wanted: tuple[str, ...]) -> None:
    """Raise ApiError 400 unless the resource is in one of these states."""
    state = change.old.get(field)
    if state not in wanted:
        text = f"{change.name} is in state {state}; it must be in {' or '.join(wanted)}."
        raise ApiError(400, "FAILED_PRECONDITION", text, reason="failedPrecondition")
