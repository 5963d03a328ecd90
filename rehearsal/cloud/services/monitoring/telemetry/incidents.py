"""Alert policies at work: conditions that hold open incidents, which are notified and closed again.

https://cloud.google.com/monitoring/alerts/concepts-indepth: an incident is one condition's, for one set of
labels; it opens once the condition has held for its duration, and closes when it clears.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress

from rehearsal.cloud.core.clock import rfc3339
from rehearsal.cloud.core.errors import ApiError, JsonObject, NotEmulatedError, bad_request
from rehearsal.cloud.core.world import World
from rehearsal.cloud.iam.iam import Iam
from rehearsal.cloud.services.logging import counting
from rehearsal.cloud.services.monitoring.telemetry import notify, promql, thresholds
from rehearsal.cloud.services.monitoring.telemetry.records import Incident, Labels, Notification
from rehearsal.cloud.services.monitoring.telemetry.series import Points

EVERY_S = 60.0
_THRESHOLD, _PROMQL = "conditionThreshold", "conditionPrometheusQueryLanguage"
_OF_LOGS = "logging.googleapis.com/user/"
# What Google itself measures and this cloud does too: type → resource.
NATIVE = {
    "serviceruntime.googleapis.com/quota/exceeded": "consumer_quota",
}


class Telemetry:
    """Counts entries, evaluates policies, keeps incidents and what was sent."""

    def __init__(self, world: World, iam: Iam) -> None:
        self._world, self._iam = world, iam
        self.points = Points()
        self.incidents: list[Incident] = []
        self.sent: list[Notification] = []
        self._holds: dict[tuple[str, str, Labels], float] = {}  # since when
        self._blamed: set[str] = set()

    async def watch(self) -> None:
        """Evaluate policies every minute of the virtual clock."""
        while True:
            await self._world.clock.sleep(EVERY_S)
            self.evaluate()

    def observe(self, entry: JsonObject) -> None:
        """Add a point to each metric that matches a log entry."""
        resource, now = entry["resource"], self._world.clock.now()
        for body in self._bodies("metrics"):
            if made := counting.point(body, entry):
                labels, value = made
                kind = body["metricDescriptor"]["type"]
                self.points.add(kind, resource["type"], resource.get("labels", {}), labels, now, value)

    def measure(
        self, metric: str, resource_labels: dict[str, str], labels: dict[str, str], value: float = 1.0
    ) -> None:
        """Add a point of one of Google's own metrics."""
        now = self._world.clock.now()
        self.points.add(metric, NATIVE[metric], resource_labels, labels, now, value)

    def evaluate(self) -> None:
        """Evaluate every enabled policy; open and close incidents."""
        seen: set[tuple[str, str, Labels]] = set()
        now, types = self._world.clock.now(), self._types()
        for policy in self._bodies("alertPolicies"):
            if not policy.get("enabled", True):
                continue
            for condition in policy["conditions"]:
                for labels, value in self._judged(condition, now, types).items():
                    key = policy["name"], condition["name"], labels
                    seen.add(key)
                    since = self._holds.setdefault(key, now)
                    if now - since >= _duration_s(condition) and not self._open(key):
                        self._begin(policy, condition, labels, value, now)
        # Conditions that don't hold any more lose their duration so far, and their incidents close.
        for key in self._holds.keys() - seen:
            del self._holds[key]
        for incident in self.incidents:
            key = incident.policy["name"], incident.condition["name"], incident.labels
            if not incident.closed_s and key not in seen:
                incident.closed_s = now
                self._notify(incident)

    def check(self, condition: JsonObject) -> None:
        """Raise ApiError for a condition that Google refuses; others may fail when evaluated."""
        with suppress(NotEmulatedError):
            self._check(condition)
            self._require_metrics(condition)

    def _require_metrics(self, condition: JsonObject) -> None:
        """Raise ApiError for a condition on one of the project's metrics that Monitoring doesn't know (yet).

        https://github.com/hashicorp/terraform-provider-google/issues/11102
        """
        known = self.descriptors()
        if _THRESHOLD in condition:
            kind = thresholds.metric(condition[_THRESHOLD])
            if kind.startswith(_OF_LOGS) and kind not in known:
                text = (
                    f'Cannot find metric(s) that match type = "{kind}". If a metric was created recently, it '
                    "could take up to 10 minutes to become available. Please try again soon."
                )
                raise ApiError(404, "NOT_FOUND", text, reason="notFound")
        elif not condition[_PROMQL].get("disableMetricValidation"):
            types = {promql.promql_name(kind): kind for kind in (*known, *NATIVE)}
            _, names = promql.parse(condition[_PROMQL]["query"])
            if unknown := sorted(name for name in names if not promql.resolved(name, types)[0]):
                raise bad_request(f"The metric {unknown[0]} doesn't exist, or has no data yet.")

    def descriptors(self) -> dict[str, JsonObject]:
        """Return the descriptors of the metrics of logs that Monitoring knows by now, by their types."""
        described = [body["metricDescriptor"] for body in self._bodies("metrics")]
        now, unseen = self._world.clock.now(), self._world.unseen
        return {item["type"]: item for item in described if unseen.get(item["name"], 0.0) <= now}

    def _check(self, condition: JsonObject) -> None:
        if _THRESHOLD in condition:
            thresholds.check(condition[_THRESHOLD])
        elif _PROMQL in condition:
            inner = condition[_PROMQL]
            promql.parse(inner.get("query", ""))
            interval_s = float(str(inner.get("evaluationInterval", "30s")).removesuffix("s"))
            if interval_s < 30 or interval_s % 30:
                raise bad_request("The evaluation interval must be a multiple of 30 seconds.")
        else:
            kind = next((key for key in condition if key.startswith("condition")), "none")
            raise NotEmulatedError(f"A condition of kind {kind}")

    def alert(self, incident: Incident) -> JsonObject:
        """Return an incident as the API's Alert."""
        ended = {"closeTime": rfc3339(incident.closed_s)} if incident.closed_s else {}
        return {
            "name": incident.name,
            "state": "CLOSED" if incident.closed_s else "OPEN",
            "openTime": rfc3339(incident.opened_s),
            **ended,
            "metric": {"labels": dict(incident.labels)},
            "policy": {
                key: incident.policy[key]
                for key in ("name", "displayName", "userLabels", "severity")
                if incident.policy.get(key)
            },
        }

    def alerts(self) -> list[JsonObject]:
        """Return all incidents as the API's alerts, newest first."""
        return [self.alert(incident) for incident in reversed(self.incidents)]

    def query(self, text: str) -> promql.Vector:
        """Return the value of a PromQL expression now."""
        return self._value(text, self._world.clock.now(), self._types())

    def _value(self, text: str, at_s: float, types: Mapping[str, str]) -> promql.Vector:
        node, _ = promql.parse(text)
        return promql.vector(node, promql.Moment(self.points, at_s, types))

    def _judged(self, condition: JsonObject, now: float, types: Mapping[str, str]) -> dict[Labels, float]:
        """Return the series for which a condition holds; an unsupported one is an error of the emulation."""
        try:
            self._check(condition)
            return self._holding(condition, now, types)
        except NotEmulatedError as error:
            if condition["name"] not in self._blamed:
                self._blamed.add(condition["name"])
                self._world.blame(f"the condition {condition['displayName']!r}", error.message)
            return {}

    def _holding(self, condition: JsonObject, now: float, types: Mapping[str, str]) -> dict[Labels, float]:
        if _THRESHOLD in condition:
            return thresholds.evaluate(condition[_THRESHOLD], self.points, now)
        return self._value(condition[_PROMQL]["query"], now, types)

    def _types(self) -> dict[str, str]:
        metrics = [body["metricDescriptor"]["type"] for body in self._bodies("metrics")]
        return {promql.promql_name(kind): kind for kind in (*metrics, *NATIVE)}

    def _bodies(self, collection: str) -> Iterator[JsonObject]:
        prefix = f"projects/{self._world.project}/{collection}/"
        return (body for name, body in list(self._world.directory.items()) if name.startswith(prefix))

    def _open(self, key: tuple[str, str, Labels]) -> bool:
        return any(
            not incident.closed_s
            and (incident.policy["name"], incident.condition["name"], incident.labels) == key
            for incident in self.incidents
        )

    def _begin(
        self, policy: JsonObject, condition: JsonObject, labels: Labels, value: float, now: float
    ) -> None:
        id_ = uuid.uuid4().hex
        name = f"projects/{self._world.project}/alerts/{id_}"
        incident = Incident(id_, name, dict(policy), dict(condition), labels, value, now)
        self.incidents.append(incident)
        self._notify(incident)

    def _notify(self, incident: Incident) -> None:
        for name in incident.policy.get("notificationChannels") or ():
            channel = self._world.directory.get(name)
            if channel is None or not channel.get("enabled", True):
                continue
            failed = notify.send(channel, incident, self._world, self._iam)
            to = next(iter(channel.get("labels", {}).values()), "")
            body = notify.message(incident, self._world)
            self.sent.append(Notification(name, channel["type"], to, body, failed))


def _duration_s(condition: JsonObject) -> float:
    inner = condition.get(_THRESHOLD) or condition[_PROMQL]
    return float(str(inner.get("duration") or "0s").removesuffix("s"))
