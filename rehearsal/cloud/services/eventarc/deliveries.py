"""Events of Cloud Storage on their way through Eventarc's triggers, to a Run service.

https://cloud.google.com/eventarc/docs/run/route-trigger-cloud-storage. Each is delivered at least once,
a refused one again, after a pause that grows, for 24 hours. A fault rule matches a delivery as
`eventarc.events.deliver`, with `TRIGGER/objects/OBJECT` as path and its account as principal: with `lost` it
is never made, with `lost_answer` it is made twice, with `status` or `reset` it comes late, after the pause.
"""

from __future__ import annotations

import itertools
import json
import logging
from functools import partial

from rehearsal.cloud.core.errors import ApiError, JsonObject
from rehearsal.cloud.core.runtime import OIDC, Caller, HttpRequest
from rehearsal.cloud.core.world import World
from rehearsal.cloud.door.doorway import Doorway, Passage
from rehearsal.cloud.door.faults import LostError
from rehearsal.cloud.iam.iam import Iam, agent

log = logging.getLogger(__name__)

METHOD = "eventarc.events.deliver"
FINALIZED = "google.cloud.storage.object.v1.finalized"
_RECEIVE = "eventarc.events.receiveEvent"
# Virtual seconds from the object to the first attempt (this project's choice), the shortest and longest pause
# between attempts, and the end of them (https://cloud.google.com/eventarc/docs/retry-events).
_LAG_S, _FIRST_S, _LONGEST_S, _END_S = 1.0, 10.0, 600.0, 86400.0
_TIMEOUT_S = 600.0


class Deliveries:
    """Sends each event through the triggers that match it."""

    def __init__(self, world: World, iam: Iam, doorway: Doorway, caller: Caller) -> None:
        self._world, self._iam, self._doorway, self._caller = world, iam, doorway, caller
        self._ids = itertools.count(10**16)

    def finalized(self, data: JsonObject) -> None:
        """Deliver the event of an object's new generation, whose StorageObjectData is `data`."""
        event = {
            "specversion": "1.0",
            "id": str(next(self._ids)),
            "type": FINALIZED,
            "source": f"//storage.googleapis.com/projects/_/buckets/{data['bucket']}",
            "subject": f"objects/{data['name']}",
            "time": data["timeCreated"],
            "datacontenttype": "application/json",
            "bucket": data["bucket"],
            "data": data,
        }
        for name in sorted(self._world.triggers):
            filters = {
                entry["attribute"]: entry["value"] for entry in self._world.directory[name]["eventFilters"]
            }
            if filters == {"type": FINALIZED, "bucket": data["bucket"]}:
                self._world.spawn(self._deliver(name, event))

    async def _deliver(self, name: str, event: JsonObject) -> None:
        clock = self._world.clock
        end, pause_s = clock.now() + _END_S, _FIRST_S
        await clock.sleep(_LAG_S)
        while name in self._world.triggers and clock.now() < end:
            trigger = self._world.directory[name]
            account = trigger["serviceAccount"].rpartition("/")[2]
            path = f"{name}/{event['subject']}"
            passage = Passage(METHOD, "POST", "eventarc.googleapis.com", path, account, "")
            try:
                await self._doorway.answer(passage, partial(self._attempt, trigger, event), _cut)
                return
            except LostError:
                return
            except (ApiError, ConnectionError, TimeoutError) as error:
                why = getattr(error, "message", str(error))
                log.warning("event %s of %s isn't delivered: %s", event["id"], event["subject"], why)
            if trigger.get("retryPolicy", {}).get("maxAttempts") == 1:
                return
            await clock.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_S)

    async def _attempt(self, trigger: JsonObject, event: JsonObject) -> None:
        """Send an event; ApiError unless the destination accepts it and the agents on the way may forward it.

        Cloud Storage publishes it, and Eventarc hands it over with a token of the trigger's account:
        https://cloud.google.com/eventarc/docs/all-roles-permissions.
        """
        account, to = trigger["serviceAccount"].rpartition("/")[2], trigger["destination"]
        self._iam.require(agent(self._world, "storage"), "pubsub.topics.publish", self._iam.project)
        name = f"{self._iam.project}/serviceAccounts/{account}"
        self._iam.require(agent(self._world, "eventarc"), "iam.serviceAccounts.getAccessToken", name)
        self._iam.require(account, _RECEIVE, self._iam.project)
        reply = await self._caller.send(self._request(to, event), account)
        if reply.status >= 300:
            text = reply.body.decode(errors="replace")[:500]
            raise ApiError(reply.status, "UNAVAILABLE", f"the destination answered {reply.status}: {text}")

    def _request(self, to: JsonObject, event: JsonObject) -> HttpRequest:
        run = to["cloudRun"]
        service = self._world.require(
            f"projects/{self._world.project}/locations/{run['region']}/services/{run['service']}"
        )
        # CloudEvents in binary mode: https://cloud.google.com/eventarc/docs/workflows/cloudevents
        headers = {
            f"Ce-{key.title()}": value
            for key, value in event.items()
            if key not in ("data", "datacontenttype")
        }
        url, body = service["uri"] + run.get("path", "/"), json.dumps(event["data"]).encode()
        return HttpRequest(
            "POST",
            url,
            {**headers, "Content-Type": "application/json"},
            body,
            OIDC,
            service["uri"],
            _TIMEOUT_S,
        )


def _cut() -> ConnectionError:
    return ConnectionResetError("closed by a fault rule")
