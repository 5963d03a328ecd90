"""Pub/Sub: topics and subscriptions, with the messages between them."""

from __future__ import annotations

import itertools

from rehearsal.cloud.collections import Change, Collection, Entry, Reference, Verb
from rehearsal.cloud.core.errors import JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.world import World

_ID = r"(?!goog)[a-zA-Z][-\w.~+%]{2,254}"  # https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
_TOPIC, _SUBSCRIPTION = "pubsub.projects.topics", "pubsub.projects.subscriptions"
_numbers = itertools.count(10**16)


def publish(world: World, topic: str, sent: list[JsonObject]) -> list[str]:
    """Add messages to the backlog of every subscription of a topic; return their ids."""
    now = world.clock.rfc3339()
    messages = [{**message, "messageId": str(next(_numbers)), "publishTime": now} for message in sent]
    for name, body in world.directory.items():
        if "/subscriptions/" in name and world.with_id(body["topic"]) == topic:
            world.private.setdefault(name, {}).setdefault("backlog", {}).update(
                {str(next(_numbers)): message for message in messages}
            )
    return [message["messageId"] for message in messages]


def _publish(change: Change) -> JsonObject:
    """topics.publish."""
    sent = change.sent.get("messages") or []
    if not sent or any(not (message.get("data") or message.get("attributes")) for message in sent):
        raise bad_request("A message must have either non-empty data or at least one attribute.")
    return {"messageIds": publish(change.world, change.name, sent)}


def _pull(change: Change) -> JsonObject:
    """subscriptions.pull: the oldest that aren't acknowledged. Deadlines don't run: a message comes again."""
    most = int(change.sent.get("maxMessages") or 0)
    if most <= 0:
        raise bad_request("The value for max_messages is too small. You passed 0 in the request.")
    if change.old.get("pushConfig"):
        raise NotEmulatedError("pulling from a push subscription")
    backlog = change.private.get("backlog", {})
    received = [{"ackId": key, "message": message} for key, message in list(backlog.items())[:most]]
    return {"receivedMessages": received} if received else {}


def _acknowledge(change: Change) -> JsonObject:
    for key in change.sent.get("ackIds") or ():
        change.private.get("backlog", {}).pop(key, None)
    return {}


def _names(change: Change) -> JsonObject:
    """topics.subscriptions.list."""
    topic = change.name.removesuffix("/subscriptions")
    change.resources.find(topic)
    names = [name for name in change.resources.users(topic) if "/subscriptions/" in name]
    return {"subscriptions": names} if names else {}


_NOT_FOUND = "Resource not found (resource={id})."
_EXISTS = "Resource already exists in the project (resource={id})."
_CONSUME = "pubsub.subscriptions.consume"

ENTRY = Entry(
    "pubsub",
    ("v1",),
    (
        Collection(
            _TOPIC,
            pattern=_ID,
            mask_required=True,
            ready={"state": "ACTIVE"},
            verbs={"publish": Verb(_publish)},
            immutable=("kmsKeyName",),
            not_found=_NOT_FOUND,
            exists=_EXISTS,
        ),
        Collection(
            f"{_TOPIC}.subscriptions",
            permission="pubsub.topics",
            permissions={"list": "pubsub.topics.listSubscriptions"},
            verbs={"list": Verb(_names, exists=False)},
        ),
        Collection(
            _SUBSCRIPTION,
            pattern=_ID,
            permissions={"pull": _CONSUME, "acknowledge": _CONSUME},
            mask_required=True,
            # https://cloud.google.com/pubsub/docs/subscription-properties
            defaults={
                "ackDeadlineSeconds": 10,
                "messageRetentionDuration": "604800s",
                "expirationPolicy": {"ttl": "2678400s"},
            },
            ready={"state": "ACTIVE"},
            immutable=("topic", "filter", "enableMessageOrdering"),
            # https://cloud.google.com/pubsub/docs/delete-topic: its subscriptions aren't deleted.
            references=(
                Reference(
                    "topic", (_TOPIC,), permission="pubsub.topics.attachSubscription",
                    on_delete="_deleted-topic_",
                ),
                Reference("deadLetterPolicy.deadLetterTopic", (_TOPIC,), on_delete="_deleted-topic_"),
            ),
            verbs={
                "pull": Verb(_pull),
                "acknowledge": Verb(_acknowledge),
            },
            not_found=_NOT_FOUND,
            exists=_EXISTS,
        ),
    ),
    package="google.pubsub.v1",
)  # fmt: skip
