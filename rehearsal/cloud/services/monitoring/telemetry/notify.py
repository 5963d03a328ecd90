"""Notifications of incidents to channels.

The message to Pub/Sub and to webhooks: https://cloud.google.com/monitoring/support/notification-options.
"""

from __future__ import annotations

import base64
import json

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam, agent
from rehearsal.cloud.services.monitoring.telemetry.records import Incident
from rehearsal.cloud.services.pubsub import publish


def message(incident: Incident, world: World) -> JsonObject:
    """Return the JSON that is published or posted."""
    policy = incident.policy
    about = policy.get("documentation", {})
    return {
        "version": "1.2",
        "incident": {
            "incident_id": incident.id,
            "scoping_project_id": world.project,
            "state": "closed" if incident.closed_s else "open",
            "severity": policy.get("severity", "No severity"),
            "started_at": int(incident.opened_s),
            "ended_at": int(incident.closed_s) if incident.closed_s else None,
            "policy_name": policy["displayName"],
            "policy_user_labels": policy.get("userLabels", {}),
            "condition_name": incident.condition["displayName"],
            "observed_value": f"{incident.value:g}",
            "metric": {"labels": dict(incident.labels)},
            "documentation": {key: about[key] for key in ("content", "subject", "links") if about.get(key)},
        },
    }


def send(channel: JsonObject, incident: Incident, world: World, iam: Iam) -> str:
    """Publish to the channel's topic; return the reason of a failure, or "".

    E-mails and webhooks don't leave the emulated cloud; the caller records them.
    """
    if channel.get("type") != "pubsub":
        return ""
    topic = channel["labels"]["topic"]
    publisher = agent(world, "monitoring-notification")
    if topic not in world.directory:
        return f"there is no topic {topic}"
    try:
        iam.require(publisher, "pubsub.topics.publish", topic)
    except ApiError as error:
        return f"serviceAccount:{publisher} may not publish to {topic}: {error.message}"
    data = base64.b64encode(json.dumps(message(incident, world)).encode()).decode()
    publish(world, topic, [{"data": data}])
    return ""
