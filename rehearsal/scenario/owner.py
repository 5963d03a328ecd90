"""Single requests to Google's APIs as the project's owner, sent by google-api-python-client."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from string import Template
from typing import Any

import httplib2
from google.oauth2.credentials import Credentials
from google_auth_httplib2 import AuthorizedHttp
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.scenario import nearest
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import NOTHING, step
from rehearsal.world import person
from rehearsal.world.checkout import read_settings

# Real seconds that an API, or an account, may take to answer after it was enabled or created.
_PATIENCE_S, _POLL_S = 90.0, 0.05
_OPERATION_S = 600.0

JsonObject = dict[str, Any]


class Owner:
    """Client of the emulated APIs. `served`: ids of emulated methods. `values`: of `$WORD`s in requests."""

    def __init__(
        self, http: Callable[[], httplib2.Http], served: Iterable[str], values: Mapping[str, str]
    ) -> None:
        self._http, self.served, self.values = http, frozenset(served), dict(values)

    def send(self, version: str, method_id: str, arguments: JsonObject) -> JsonObject:
        """Send a request and return its answer; ScenarioFailed for a refusal.

        An operation of Compute Engine or GKE is returned once it is done.

        Retries while the API or a service account has only just been created.
        """
        api, *words, verb = method_id.split(".")
        resource = build(api, version, http=self._http(), static_discovery=True)
        for word in words:
            resource = getattr(resource, word)()
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                answer = getattr(resource, verb)(**arguments).execute(num_retries=2)
            except HttpError as refused:
                late = b"SERVICE_DISABLED" in refused.content or b"Unknown service account" in refused.content
                if not late or time.monotonic() > until:
                    raise ScenarioFailed(f"{method_id}: {refused.status_code} {refused.reason}") from refused
                time.sleep(_POLL_S)
                continue
            except TypeError as missing:  # a parameter is missing or unknown
                raise ScenarioFailed(f"{method_id}: {missing}") from missing
            return self._done(method_id, answer) if isinstance(answer, dict) else {}

    def _done(self, method_id: str, answer: JsonObject) -> JsonObject:
        """Wait for an operation of Compute Engine or GKE: until then no other may change its target."""
        until = time.monotonic() + _OPERATION_S
        while "operationType" in answer and answer["status"] != "DONE":
            if time.monotonic() > until:
                raise ScenarioFailed(f"{method_id}: not done within {_OPERATION_S:.0f} s: {answer}")
            time.sleep(_POLL_S)
            answer = json.loads(self._http().request(answer["selfLink"])[1])
        if error := answer.get("error"):
            raise ScenarioFailed(f"{method_id}: {error}")
        return answer

    def fill(self, value: Any) -> Any:
        """Return a copy in which each `$WORD` has its value; ScenarioFailed for an unknown word."""
        if isinstance(value, str):
            try:
                return Template(value).substitute(self.values)
            except KeyError as unknown:
                raise ScenarioFailed(f"unknown ${unknown.args[0]} in {value!r}") from None
        if isinstance(value, Mapping):
            return {key: self.fill(item) for key, item in value.items()}
        return [self.fill(item) for item in value] if isinstance(value, list) else value


def owner(scene: Scene) -> Owner:
    """Return the owner's client, which knows the scenario's project and the zone of its first slice."""
    settings = read_settings(scene.program, scene.environment)
    slices, zones = settings["tpu:slices"], settings.get("tpu:zones")
    assert isinstance(slices, list)
    zone = str(slices[0]["zones"][0] if slices else zones[0] if isinstance(zones, list) else "")
    values = {"project": scene.bucket.project, "zone": zone, "region": zone.rpartition("-")[0]}
    login = Credentials.from_authorized_user_file(person.credentials("owner"))  # type: ignore[no-untyped-call]
    served = scene.control.access()["served"]
    return Owner(lambda: AuthorizedHttp(login, http=httplib2.Http()), served, values)


def _check_request(arguments: Mapping[str, Any]) -> None:
    if arguments["method"].count(".") < 3:
        raise ValueError(f"method: {arguments['method']!r} isn't API.VERSION.COLLECTION.VERB")


@step("request: {method}", check=_check_request)
def request(scene: Scene, method: str, arguments: Mapping[str, Any] = NOTHING) -> None:
    """Send one request as the project's owner, e.g. to create a layer's prerequisite.

    `$project`, `$zone` and `$region` in a text are those of the first slice.
    """
    api, version, rest = method.split(".", 2)
    client, method_id = owner(scene), f"{api}.{rest}"
    if method_id not in client.served:
        of_the_api = sorted(served for served in client.served if served.startswith(f"{api}."))
        raise ScenarioFailed(f"{method_id} isn't emulated{nearest(method_id, of_the_api)}")
    client.send(version, method_id, client.fill(arguments))
