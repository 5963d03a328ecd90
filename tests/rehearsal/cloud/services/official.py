"""Google's official Python clients of one collection of any service, behind one face.

A client that can speak REST is used as it is; the others (they speak gRPC only, or are tens of MB large)
by google-api-python-client, whose description of the API is Google's as well.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

import google.api_core.exceptions
import httplib2
from google.api_core.retry import Retry
from google.oauth2.credentials import Credentials
from google_auth_httplib2 import AuthorizedHttp
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.limits import HANG_S

PROJECT, OWNER = "wire-test", "owner@example.com"
_SOON = Retry(predicate=lambda error: isinstance(error, google.api_core.future.polling._OperationNotComplete),
              initial=0.01, maximum=0.05, timeout=HANG_S)  # fmt: skip


class Door(ABC):
    """The address of the cloud."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    def credentials(self, principal: str) -> Credentials:
        """Good ones of an account."""


class RefusedError(Exception):
    """An error of an official client, in one form. `text` has the message and the details."""

    def __init__(self, code: int, kind: type[Exception], text: str) -> None:
        super().__init__(f"{code} {kind.__name__}: {text}")
        self.code, self.kind, self.text = code, kind, text


def description(api: str, version: str) -> Any:
    """Google's discovery document."""
    folder = files("googleapiclient") / "discovery_cache" / "documents"
    return json.loads((folder / f"{api}.{version}.json").read_text())


class Client(Protocol):
    """The methods of one collection. Names are full ones; bodies are in the client's own spelling."""

    def create(self, parent: str, id_: str, body: Any) -> str: ...
    def get(self, name: str) -> Any: ...
    def pages(self, parent: str, size: int) -> list[list[str]]: ...
    def update(self, name: str, change: Any, body: Any) -> None: ...
    def delete(self, name: str) -> None: ...
    def policy(self, name: str) -> list[tuple[str, list[str]]]: ...
    def set_policy(self, name: str, role: str, member: str) -> None: ...
    def held(self, name: str, permissions: list[str]) -> list[str]: ...


@dataclass
class Gapic:
    """A client of google-cloud-python ("google.cloud.eventarc_v1", "EventarcClient", "trigger").

    Each package takes a second to import: by what uses it, and not by every collection of tests.
    """

    package: str
    client: str
    noun: str
    host: str
    collection: str  # the segment of names: "triggers"
    door: Door
    principal: str = OWNER
    plural: str = ""

    @cached_property
    def _package(self) -> ModuleType:
        return importlib.import_module(self.package)

    @cached_property
    def _client(self) -> Any:
        client = getattr(self._package, self.client)
        transport = client.get_transport_class("rest")
        host = f"http://{self.host}.googleapis.com:{self.door.port}"
        credentials = self.door.credentials(self.principal)
        if self.host == "billingbudgets":
            credentials = credentials.with_quota_project(PROJECT)  # type: ignore[no-untyped-call]
        return client(transport=transport(host=host, credentials=credentials))

    def create(self, parent: str, id_: str, body: Any) -> str:
        request, name = self._request("Create"), f"{parent}/{self.collection}/{id_}"
        sent: dict[str, Any] = {"parent": parent, self.noun: dict(body)}
        if request is None:  # the resource itself is the request
            sent = {**body, "name": name}
        elif f"{self.noun}_id" in request.meta.fields:
            sent[f"{self.noun}_id"] = id_
        elif self.host == "container":
            sent[self.noun]["name"] = id_
        elif self.host != "billingbudgets":
            sent[self.noun]["name"] = name
        made = self._call("create", sent)
        return name if self.host == "container" else str(made.name)

    def get(self, name: str) -> Any:
        key = (
            "name"
            if self._request("Get") is None or "name" in self._request("Get").meta.fields
            else self.noun
        )
        result = self._call("get", {key: name})
        return type(result).to_dict(result)

    def pages(self, parent: str, size: int) -> list[list[str]]:
        request = self._request("List", self._many)
        sent = {"parent" if "parent" in request.meta.fields else "project": parent}
        if "page_size" not in request.meta.fields:
            return [
                [
                    notification.name
                    for notification in getattr(self._call("list", sent, self._many), self._many)
                ]
            ]
        pager = self._call("list", {**sent, "page_size": size}, self._many)
        return [[item.name for item in getattr(page, self._many)] for page in pager.pages]

    def update(self, name: str, change: Any, body: Any) -> None:
        request = self._request("Update")
        if "update_mask" in request.meta.fields:
            resource = {**change, "name": name}
            self._call(
                "update", {self.noun: resource, "update_mask": {"paths": [p.rstrip("_") for p in change]}}
            )
        else:
            self._call("update", {self.noun: {**body, **change, "name": name}})

    def delete(self, name: str) -> None:
        request = self._request("Delete")
        self._call("delete", {"name" if "name" in request.meta.fields else self.noun: name})

    def policy(self, name: str) -> list[tuple[str, list[str]]]:
        policy = self._run(self._client.get_iam_policy, {"resource": name})
        return [(binding.role, list(binding.members)) for binding in policy.bindings]

    def set_policy(self, name: str, role: str, member: str) -> None:
        policy = {"bindings": [{"role": role, "members": [member]}]}
        self._run(self._client.set_iam_policy, {"resource": name, "policy": policy})

    def held(self, name: str, permissions: list[str]) -> list[str]:
        sent = {"resource": name, "permissions": permissions}
        return list(self._run(self._client.test_iam_permissions, sent).permissions)

    @property
    def _many(self) -> str:
        return self.plural or f"{self.noun}s"

    def _request(self, verb: str, noun: str = "") -> Any:
        words = "".join(word.capitalize() for word in (noun or self.noun).split("_"))
        return getattr(self._package, f"{verb}{words}Request", None)

    def _call(self, verb: str, sent: Any, noun: str = "") -> Any:
        return self._run(getattr(self._client, f"{verb}_{noun or self.noun}"), sent)

    def _run(self, method: Callable[..., Any], sent: Any, *, wait: bool = True) -> Any:
        try:
            answer = method(request=sent, retry=None, timeout=HANG_S)
            if wait and hasattr(answer, "result"):
                return answer.result(polling=_SOON)
        except google.api_core.exceptions.GoogleAPICallError as error:
            raise RefusedError(error.code or 0, type(error), f"{error.message} {error.details}") from error
        if self.host == "container" and hasattr(answer, "operation_type"):
            self._wait(answer)
        return answer

    def _wait(self, operation: Any) -> None:
        """GKE's client has no future."""
        name = operation.self_link.partition("/v1/")[2]
        until = time.monotonic() + HANG_S
        while operation.status != operation.Status.DONE:
            assert time.monotonic() < until, operation
            operation = self._client.get_operation(request={"name": name})
        assert not operation.error.code, operation


class _Loopback(httplib2.Http):  # type: ignore[misc]
    """Leads to this machine, whatever the host."""

    def request(
        self, uri: str, method: str = "GET", body: Any = None, headers: Any = None, **more: Any
    ) -> Any:
        parts = urlsplit(uri)
        geturl = parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl()
        return super().request(geturl, method, body, {**(headers or {}), "Host": parts.netloc}, **more)


@dataclass
class Discovered:
    """google-api-python-client, of a collection by what its method ids begin with."""

    collection: str
    version: str
    door: Door
    principal: str = OWNER
    host: str = ""

    @cached_property
    def _document(self) -> Any:
        return description(self.collection.partition(".")[0], self.version)

    @cached_property
    def _methods(self) -> dict[str, Any]:
        resource = self._document
        for word in self.collection.split(".")[1:]:
            resource = resource["resources"][word]
        return dict(resource["methods"])

    @cached_property
    def _service(self) -> Any:
        api = self.collection.partition(".")[0]
        base = f"http://{self.host or api}.googleapis.com:{self.door.port}/{self._document['servicePath']}"
        http = AuthorizedHttp(self.door.credentials(self.principal), http=_Loopback())
        return build(
            api, self.version, http=http, static_discovery=True, client_options={"api_endpoint": base}
        )

    @cached_property
    def _resource(self) -> Any:
        resource = self._service
        for word in self.collection.split(".")[1:]:
            resource = getattr(resource, word)()
        return resource

    def create(self, parent: str, id_: str, body: Any) -> str:
        verb = "insert" if "insert" in self._methods else "create"
        by_client = self.collection.startswith(("compute.", "logging."))
        parameters = self._methods[verb]["parameters"]
        named = {key: id_ for key in parameters if key.endswith("Id") and key != "requestId"}
        query = {} if by_client else named
        made = self._call(verb, parent, {**body, "name": id_} if by_client else body, **query)
        name = made.get("response", made)["name"]
        return f"{parent}/{self.collection.rpartition('.')[2]}/{id_}" if by_client else str(name)

    def get(self, name: str) -> Any:
        return self._call("get", name)

    def pages(self, parent: str, size: int) -> list[list[str]]:
        parameters = self._methods["list"]["parameters"]
        sized = next(({key: size} for key in ("pageSize", "maxResults") if key in parameters), {})
        request = self._resource.list(**self._path("list", parent), **sized)
        result = []
        while request is not None:
            answer = self._run(request)
            key = next((key for key, value in answer.items() if isinstance(value, list)), "")
            result.append([item["name"] for item in answer.get(key, ())])
            request = self._resource.list_next(request, answer) if "nextPageToken" in answer else None
        return result

    def update(self, name: str, change: Any, body: Any) -> None:
        verb = "patch" if "patch" in self._methods else "update"
        if "updateMask" in self._methods[verb]["parameters"]:
            self._call(verb, name, change, updateMask=",".join(change))
        else:
            self._call(verb, name, {**self.get(name), **change})

    def delete(self, name: str) -> None:
        self._call("delete", name)

    def policy(self, name: str) -> list[tuple[str, list[str]]]:
        answer = self._call("getIamPolicy", name)
        return [(binding["role"], binding["members"]) for binding in answer.get("bindings", ())]

    def set_policy(self, name: str, role: str, member: str) -> None:
        self._call("setIamPolicy", name, {"policy": {"bindings": [{"role": role, "members": [member]}]}})

    def held(self, name: str, permissions: list[str]) -> list[str]:
        return list(
            self._call("testIamPermissions", name, {"permissions": permissions}).get("permissions", ())
        )

    def _path(self, verb: str, name: str) -> dict[str, str]:
        path = self._methods[verb]["path"]
        if "{+" in path:
            return {re.findall(r"\{\+(\w+)", path)[0]: name}
        values = name.replace("/global", "").split("/")[1::2]
        return dict(zip(re.findall(r"\{(\w+)", path), values, strict=True))

    def _call(self, verb: str, name: str, body: Any = None, **query: Any) -> Any:
        sent = {} if body is None else {"body": body}
        answer = self._run(getattr(self._resource, verb)(**self._path(verb, name), **sent, **query))
        until = time.monotonic() + HANG_S
        while self._running(answer):
            assert time.monotonic() < until, answer
            answer = self._operation(answer)
        if isinstance(answer.get("error"), dict):
            raise RefusedError(
                int(answer.get("httpErrorStatusCode", 0)), HttpError, json.dumps(answer["error"])
            )
        return answer

    def _running(self, answer: Any) -> bool:
        if answer.get("kind") == "compute#operation":
            return bool(answer["status"] != "DONE")
        return "metadata" in answer and "/operations/" in answer.get("name", "") and not answer.get("done")

    def _operation(self, operation: Any) -> Any:
        if "kind" not in operation:
            return self._run(self._service.projects().locations().operations().get(name=operation["name"]))
        link = operation["selfLink"].partition("/projects/")[2].split("/")
        place = {"zones": "zone", "regions": "region"}.get(link[1])
        waiter = getattr(self._service, f"{place or 'global'}Operations")()
        where = {place: link[2]} if place else {}
        return self._run(waiter.wait(project=link[0], operation=operation["name"], **where))

    def _run(self, request: Any) -> Any:
        try:
            return request.execute()
        except HttpError as error:
            raise RefusedError(
                error.status_code, HttpError, f"{error.reason} {error.error_details}"
            ) from error
