"""A tour of the emulated cloud: a resource of every collection that it serves, from creation to deletion.

The lives are in tour.yaml. What a method's URL and query need follows from Google's discovery document and
the resource's name; google-api-python-client sends it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import httplib2
import yaml
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from googleapiclient.http import MediaInMemoryUpload

from rehearsal.cloud.door import discovery
from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.reading import Problems, read

LIVES = Path(__file__).with_name("tour.yaml")
_READS = ("get", "list", "aggregatedList", "testIamPermissions", "getIamPolicy", "setIamPolicy")
# The one collection whose methods' ids aren't their paths in the document.
_PATHS = {"storage.buckets.operations": "storage.operations"}
_REGIONAL = ("aiplatform",)
_OF_OPERATIONS = ("wait", "list", "aggregatedList", "cancel", "delete")
# Real seconds that an operation, or an API that has just been enabled, may take.
_PATIENCE_S, _POLL_S = 90.0, 0.05

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One more request: `body`, and `query` for parameters that the resource's name doesn't give."""

    verb: str  # a method of the collection, or of the API (`projects.locations.operations.cancel`)
    body: Any = None
    query: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Life:
    """What happens to one resource, besides what happens to all: it is read, and its policy read and set.

    `$WORD` in a text is a value of the scenario, or a field of the resource or answer last read,
    by its path (`${tags.fingerprint}`). `$name` is the full name, `$around` that of the life around, and
    `$operation` the last operation's.
    """

    collection: str  # `pubsub.v1.projects.topics`
    parent: str = ""  # full name of where it is made; left out: the resource of the life around
    name: str = ""  # full name of what is there already, and is only read
    id: str = "tour"
    reads: tuple[str, ...] = _READS
    create: dict[str, Any] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)  # of all its methods that have the parameter
    waits: bool = True  # for the operation of its creation
    change: dict[str, Any] = field(default_factory=dict)  # what `patch` and `update` are sent
    calls: tuple[Call, ...] = ()
    within: tuple[Any, ...] = ()  # lives of what needs this resource


def lives(path: Path = LIVES) -> tuple[Life, ...]:
    """What the file says; ScenarioFailed with every problem."""
    return _read(yaml.safe_load(path.read_text()), path.name)


def _read(listed: Iterable[Any], path: str) -> tuple[Life, ...]:
    problems = Problems()
    found = [read(Life, one, f"{path}[{number}]", problems) for number, one in enumerate(listed)]
    if problems.lines:
        raise ScenarioFailed("; ".join(problems.lines))
    return tuple(one for one in found if one)


class Guide:
    """Takes resources through their lives. `called`: the methods that answered, in order.

    `served`: the cloud's methods. `values`: of `$WORD`s, to which more can be added.
    """

    def __init__(
        self, http: Callable[[], httplib2.Http], served: Iterable[str], values: Mapping[str, str]
    ) -> None:
        self.called: list[str] = []
        self._http, self.served, self.values = http, frozenset(served), dict(values)
        self._clients: dict[tuple[str, str], Any] = {}

    def take(self, life: Life, parent: str = "") -> None:
        """One life and those within it. ScenarioFailed names the first request that was refused."""
        _Resource(self, life, parent).live()

    def serves(self, method_id: str) -> bool:
        """Whether the cloud has it."""
        return method_id in self.served

    def send(self, version: str, method_id: str, arguments: JsonObject) -> JsonObject:
        """One request's answer; asks again for what is on its way. ScenarioFailed if it is refused."""
        collection, _, verb = method_id.rpartition(".")
        api, *words = _PATHS.get(collection, collection).split(".")
        if (api, version) not in self._clients:
            self._clients[api, version] = self._client(api, version)
        resource = self._clients[api, version]
        for word in words:
            resource = getattr(resource, word)()
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                answer = getattr(resource, verb)(**arguments).execute(num_retries=2)
            except HttpError as refused:
                # An API that has just been enabled, an account that has just been made.
                late = b"SERVICE_DISABLED" in refused.content or b"Unknown service account" in refused.content
                if not late or time.monotonic() > until:
                    raise ScenarioFailed(f"{method_id}: {refused.status_code} {refused.reason}") from refused
                time.sleep(_POLL_S)
                continue
            except TypeError as missing:  # what the client says of a parameter
                raise ScenarioFailed(f"{method_id}: {missing}") from missing
            self.called.append(method_id)
            return answer if isinstance(answer, dict) else {}

    def _client(self, api: str, version: str) -> Any:
        # Vertex AI has an endpoint in each region: https://cloud.google.com/vertex-ai/docs/general/locations
        where = f"https://{self.values['region']}-{api}.googleapis.com" if api in _REGIONAL else None
        options = {"api_endpoint": where} if where else None
        return build(api, version, http=self._http(), static_discovery=True, client_options=options)

    def fill(self, value: Any, known: Mapping[str, str]) -> Any:
        """A copy in which each `$WORD` has its value; ScenarioFailed for one that nobody knows."""
        if isinstance(value, str):
            try:
                return _Dotted(value).substitute({**self.values, **known})
            except KeyError as unknown:
                raise ScenarioFailed(f"nobody knows ${unknown.args[0]} of {value!r}") from None
        if isinstance(value, Mapping):
            return {key: self.fill(one, known) for key, one in value.items()}
        return [self.fill(one, known) for one in value] if isinstance(value, list) else value


class _Dotted(Template):
    braceidpattern = r"[a-zA-Z]\w*(?:\.\w+)*"


class _Resource:
    """The resource of one life."""

    def __init__(self, guide: Guide, life: Life, parent: str) -> None:
        self._guide, self._life = guide, life
        self._api, self._version, path = life.collection.split(".", 2)
        self._collection = f"{self._api}.{path}"
        self._known = {"around": parent}
        self._now: JsonObject = {}  # as last read
        self._policy: JsonObject = {}
        parent = guide.fill(life.parent, {}) or parent
        made = f"{parent}/{path.rpartition('.')[2]}/{guide.fill(life.id, {})}"
        self._name = guide.fill(life.name, self._known) or made

    def live(self) -> None:
        """From its creation to its deletion."""
        life, made = self._life, not self._life.name
        if made:
            self._create()
        for verb in filter(self._serves, life.reads):
            self._read(verb)
        for verb in filter(self._serves, ("patch", "update") if life.change else ()):
            self._change(verb)
        for call in life.calls:
            if "fingerprint" in str(call).lower():
                self._read("get")
            self._send(call.verb, call.body, call.query)
        for inner in _read(life.within, life.collection):
            self._guide.take(inner, self._name)
        if made and self._serves("delete"):
            self._send("delete")

    def _create(self) -> None:
        verb = "create" if self._serves("create") else "insert"
        leaf = self._collection.rpartition(".")[2].lower()
        ids = [  # `triggerId`
            key
            for key, rule in self._method(f"{self._collection}.{verb}").get("parameters", {}).items()
            if rule["location"] == "query" and key.endswith("Id") and leaf.startswith(key[:-3].lower())
        ]
        answer = self._send(
            verb, self._life.create, dict.fromkeys(ids, self._life.id), waits=self._life.waits
        )
        name = str(answer.get("response", answer).get("name", ""))
        if name.split("/")[-2:-1] == self._name.split("/")[-2:-1]:  # which the server may have chosen
            self._name = name

    def _read(self, verb: str) -> None:
        if verb == "testIamPermissions":
            held = [self._permission()]
            inline = "permissions" in self._method(f"{self._collection}.{verb}")["parameters"]
            self._send(verb, {"permissions": held}, {"permissions": held} if inline else {})
        elif verb == "setIamPolicy":
            whole = self._method(f"{self._collection}.{verb}")["request"]["$ref"] == "Policy"
            self._send(verb, self._policy if whole else {"policy": self._policy})
        else:
            answer = self._send(verb)
            if verb == "get":
                self._now = answer
                self._known |= dict(_flat(answer)) | {"name": self._name}
            if verb == "getIamPolicy":
                self._policy = answer

    def _permission(self) -> str:
        api = "resourcemanager" if self._api == "cloudresourcemanager" else self._api
        return f"{api}.{self._collection.rpartition('.')[2]}.get"

    def _change(self, verb: str) -> None:
        self._read("get")
        change, method = self._life.change, self._method(f"{self._collection}.{verb}")
        mask = next((key for key in ("updateMask", "paths") if key in method["parameters"]), None)
        body = {**self._now, **change} if verb == "update" and not mask else change
        self._send(verb, body, {mask: ",".join(change)} if mask else {})

    def _serves(self, verb: str) -> bool:
        method_id = f"{self._collection}.{verb}"
        described = method_id in discovery.document(self._api, self._version).methods
        return described and self._guide.serves(method_id)

    def _method(self, method_id: str) -> JsonObject:
        method: JsonObject = discovery.document(self._api, self._version).methods[method_id]
        return method

    def _send(
        self, verb: str, body: Any = None, query: Mapping[str, Any] | None = None, *, waits: bool = True
    ) -> JsonObject:
        """The answer; where it is an operation, that at its end."""
        method_id = f"{self._api if '.' in verb else self._collection}.{verb}"
        method = self._method(method_id)
        more = self._guide.fill({**self._life.query, **(query or {})}, self._known)
        arguments = _arguments(method, self._name, more)
        if "request" in method:
            arguments["body"] = self._guide.fill(body or {}, self._known)
        if "mediaUpload" in method:
            arguments["media_body"] = MediaInMemoryUpload(b"tour")
        answer = self._guide.send(self._version, method_id, arguments)
        self._known |= dict(_flat(answer))
        name = _operation(answer)
        if name and ".operations." not in method_id:
            self._known["operation"] = name
            return self._ended(name) if waits else answer
        return answer

    def _ended(self, name: str) -> JsonObject:
        """The operation at its end; the other methods of operations are called once in a tour."""
        methods = discovery.document(self._api, self._version).methods
        collection = next(
            one
            for method_id, method in methods.items()
            if method_id.endswith("perations.get") and self._guide.serves(method_id)
            if re.fullmatch(_pattern(method), name)
            for one in [method_id.removesuffix(".get")]
        )

        def send(verb: str) -> JsonObject:
            arguments = _arguments(methods[f"{collection}.{verb}"], name, {})
            if "request" in methods[f"{collection}.{verb}"]:
                arguments["body"] = {}
            return self._guide.send(self._version, f"{collection}.{verb}", arguments)

        until = time.monotonic() + _PATIENCE_S
        while True:
            answer = send("get")
            if answer.get("done") or answer.get("status") == "DONE":
                break
            if time.monotonic() > until:
                raise ScenarioFailed(f"{name} takes longer than {_PATIENCE_S:g} s")
            time.sleep(_POLL_S)
        if "error" in answer:
            raise ScenarioFailed(f"{name}: {answer['error']}")
        for verb in _OF_OPERATIONS:
            method_id = f"{collection}.{verb}"
            if self._guide.serves(method_id) and method_id not in self._guide.called:
                send(verb)
        return answer


def _arguments(method: JsonObject, name: str, more: Mapping[str, Any]) -> JsonObject:
    """What the parameters of a method are for a resource: parts of its full name, or `more`."""
    words = name.replace("/global/", "/").split("/")
    pairs = list(zip(words[::2], words[1::2], strict=False))  # projects, p, zones, z

    def part(key: str, pattern: str) -> str:
        if "/" in pattern:
            parts = ["/".join(words[:size]) for size in range(1, len(words) + 1)]
            return next((one for one in reversed(parts) if re.fullmatch(pattern, one)), name)
        return next((of for kind, of in pairs if kind.startswith(key.removesuffix("Id"))), words[-1])

    return {
        key: more[key] if key in more else part(key, rule.get("pattern", ""))
        for key, rule in method.get("parameters", {}).items()
        if key in more or rule["location"] == "path" or rule.get("required")
    }


def _operation(answer: JsonObject) -> str:
    """The full name of the operation that an answer is; empty where it is none."""
    if "operationType" in answer:  # Compute Engine's, GKE's
        return re.sub(r".*/(?=projects/)", "", str(answer["selfLink"]))
    name = str(answer.get("name", "")).removeprefix("projects/_/")  # Cloud Storage's
    return name if re.search(r"(^|/)operations/", name) else ""


def _pattern(method: JsonObject) -> str:
    """What the full names look like that a method takes."""
    path = re.sub(r"^v\d\w*/", "", str(method.get("flatPath", method["path"])))
    path = re.sub(r"^b/", "buckets/", path)
    return re.sub(r"\{\w+\}", "[^/]+", path)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, text) of each scalar."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _flat(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _flat(one, f"{path}.{number}")
    else:
        yield path, str(value)
