"""A client of the API server: as much of one as a provider, an agent and tests need.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests
import yaml
from requests.auth import AuthBase

from rehearsal.authority import Pair
from rehearsal.kubernetes.errors import ApiServerError, UnknownKindError

Object = dict[str, Any]
_TIMEOUT_S = 30.0
_APPLY = "application/apply-patch+yaml"
_MERGE, _REPLACE = "application/strategic-merge-patch+json", "application/merge-patch+json"


@dataclass(frozen=True)
class Kind:
    """A kind of the API server: its plural, and True if its objects are in namespaces."""

    plural: str
    namespaced: bool


class Api:
    """Connection of an identity."""

    def __init__(
        self,
        url: str,
        ca: str | bool,
        pair: Pair | None = None,
        token: str = "",
        auth: AuthBase | None = None,
    ):
        """`pair`: a client's certificate; or `token`, a bearer token; or `auth`, what adds one to requests.
        `ca`: a file of certificates, or True for those of `requests`.
        """
        self.url, self._ca = url, ca
        self._pair, self._token, self._auth = pair, token, auth
        self._session = self._connect()
        self._kinds: dict[tuple[str, str], Kind] = {}

    def _connect(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.verify = self._ca
        session.auth = self._auth
        if self._pair:
            session.cert = (str(self._pair.certificate), str(self._pair.key))
        if self._token:
            session.headers["Authorization"] = f"Bearer {self._token}"
        return session

    def request(
        self, method: str, path: str, body: Any = None, content: str = "application/json", **query: str
    ) -> Any:
        """Return the answer's JSON, or its text. Raises ApiServerError if it is refused."""
        try:
            answer = self._session.request(
                method, self.url + path, params=query, timeout=_TIMEOUT_S,
                data=None if body is None else json.dumps(body), headers={"Content-Type": content},
            )  # fmt: skip
        except requests.RequestException as error:
            raise ApiServerError(503, "Unreachable", str(error)) from error
        return _answer(answer)

    # Objects

    def path(self, manifest: Mapping[str, Any]) -> str:
        """Return an object's path."""
        meta = manifest["metadata"]
        return self.place(manifest["apiVersion"], manifest["kind"], meta.get("namespace", ""), meta["name"])

    def place(self, version: str, kind: str, namespace: str = "", name: str = "") -> str:
        """Return the path of a kind's objects, or of one; of all namespaces without a namespace."""
        known = self._kind(version, kind)
        parts = [f"/api/{version}" if "/" not in version else f"/apis/{version}"]
        if known.namespaced and (namespace or name):
            parts.append(f"namespaces/{namespace or 'default'}")
        return "/".join([*parts, known.plural, *([name] if name else [])])

    def namespaced(self, version: str, kind: str) -> bool:
        """Return True if objects of a kind are in namespaces; UnknownKindError for an unknown kind."""
        return self._kind(version, kind).namespaced

    def _kind(self, version: str, kind: str) -> Kind:
        if (version, kind) not in self._kinds:
            root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
            try:
                resources = self.request("GET", root)["resources"]
            except ApiServerError as error:
                if error.status != requests.codes.not_found:
                    raise
                resources = []
            for resource in resources:
                if "/" not in resource["name"]:
                    self._kinds[version, resource["kind"]] = Kind(resource["name"], resource["namespaced"])
        try:
            return self._kinds[version, kind]
        except KeyError:
            raise UnknownKindError(f"the API server knows no {kind} of {version}") from None

    def apply(
        self, manifest: Mapping[str, Any], manager: str, *, force: bool = True, dry: bool = False
    ) -> Object:
        """Server-side apply: the object as it is then."""
        query = {"fieldManager": manager, "force": str(force).lower(), **({"dryRun": "All"} if dry else {})}
        return self.request("PATCH", self.path(manifest), manifest, _APPLY, **query)  # type: ignore[no-any-return]

    def apply_all(self, objects: Sequence[Mapping[str, Any]], manager: str) -> None:
        """Apply objects in their order."""
        for object_ in objects:
            self.apply(object_, manager)

    def get(self, version: str, kind: str, name: str, namespace: str = "") -> Object | None:
        """Return an object; None if there is none."""
        try:
            return self.request("GET", self.place(version, kind, namespace, name))  # type: ignore[no-any-return]
        except ApiServerError as error:
            if error.status != requests.codes.not_found:
                raise
            return None

    def list(self, version: str, kind: str, namespace: str = "", **query: str) -> list[Object]:
        """Objects of a kind."""
        listing = self.request("GET", self.place(version, kind, namespace), **query)
        return [{"apiVersion": version, "kind": kind, **item} for item in listing["items"]]

    def create(self, manifest: Mapping[str, Any], **query: str) -> Object:
        """Create an object."""
        path = self.place(
            manifest["apiVersion"], manifest["kind"], manifest["metadata"].get("namespace", "default")
        )
        return self.request("POST", path, manifest, **query)  # type: ignore[no-any-return]

    def patch_status(self, path: str, status: Mapping[str, Any], *, custom: bool = False) -> Object | None:
        """Change fields of an object's status, conditions by their types; the object, None if it is gone.

        Of a `custom` resource lists are replaced: the API server merges only those of its own kinds.
        """
        content = _REPLACE if custom else _MERGE
        try:
            return self.request("PATCH", f"{path}/status", {"status": status}, content)  # type: ignore[no-any-return]
        except ApiServerError as error:
            if error.status != requests.codes.not_found:
                raise
            return None

    def delete(self, path: str, grace_s: int | None = None, propagation: str = "") -> bool:
        """Delete an object; False where there is none. `propagation`: Foreground, Background or Orphan."""
        query = {} if grace_s is None else {"gracePeriodSeconds": str(grace_s)}
        if propagation:
            query["propagationPolicy"] = propagation
        try:
            self.request("DELETE", path, **query)
        except ApiServerError as error:
            if error.status != requests.codes.not_found:
                raise
            return False
        return True

    def watch(self, version: str, kind: str, seconds: float, **query: str) -> Iterator[tuple[str, Object]]:
        """Events of a kind, ADDED for all that is there first; ends after `seconds`, or a lost connection."""
        session = self._connect()  # a stream holds its connection
        more = {**query, "watch": "true", "timeoutSeconds": str(int(seconds))}
        try:
            answer = session.get(
                self.url + self.place(version, kind),
                params=more,
                stream=True,
                timeout=(_TIMEOUT_S, seconds + 5),
            )
            if not answer.ok:
                _answer(answer)
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                yield event["type"], {"apiVersion": version, "kind": kind, **event["object"]}
        except requests.RequestException:
            return
        finally:
            session.close()


def _answer(answer: requests.Response) -> Any:
    is_json = answer.headers.get("Content-Type", "").startswith("application/json")
    content = answer.json() if is_json else answer.text
    if not answer.ok:
        reason = content if isinstance(content, dict) else {"message": content}
        raise ApiServerError(answer.status_code, reason.get("reason", ""), reason.get("message", "")[:2000])
    return content


def now() -> str:
    """Return the time in Kubernetes' format."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def documents(text: str) -> list[Object]:
    """Return the objects of a YAML file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, Loader=loader) if document]
