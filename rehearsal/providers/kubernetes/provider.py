"""The provider as plain Python: one method per call of the engine (provider.go and await.go)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from rehearsal.kubernetes.errors import ApiServerError, KubernetesError, UnknownKindError
from rehearsal.kubernetes.plane.api import Api, Object
from rehearsal.providers.gcp.install import PACKAGES
from rehearsal.providers.kubernetes import difference, owners, settings, waiting
from rehearsal.providers.kubernetes.waiting import annotation
from rehearsal.providers.plugin.errors import CreatedButError, StandInError, UnsupportedError
from rehearsal.providers.plugin.provider import Checked, Diff
from rehearsal.providers.plugin.values import UNKNOWN, Secret, has_unknown

_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # a kind or a namespace that isn't there yet
_POLL_S = 0.5
_TIMEOUT_S = 600.0
_CREATOR = "pulumi-kubernetes"  # the field manager of what is created: no server-side apply yet
_MANAGER, _VERSION = "__fieldManager", "__initialApiVersion"
_SKIP = "pulumi.com/skipAwait"
_NOT_DECLARED = ("status", "id", _MANAGER, _VERSION)
_CONTROLLERS = ("deployment.kubernetes.io/revision", "kubectl.kubernetes.io/last-applied-configuration")
# Whose deletion isn't waited for with pulumi.com/skipAwait.
_SKIPPED = {"Namespace", "Pod", "ReplicationController", "DaemonSet", "Deployment", "StatefulSet", "Job"}
_GONE, _CONFLICT = requests.codes.not_found, requests.codes.conflict


class Provider:
    """A configured provider (`rehearsal.providers.plugin.provider`)."""

    package = "kubernetes"

    def __init__(self) -> None:
        self.version = PACKAGES[self.package].version
        self._settings = settings.Settings(None)
        self._stopping = threading.Event()
        self._scopes: dict[tuple[str, str], bool] = {}  # of the program's own custom resources

    def unknown_settings(self, given: Mapping[str, Any]) -> list[str]:
        """Names of settings that would have no effect, and so are refused."""
        return settings.unknown(given)

    def replacing_settings(self, olds: Mapping[str, Any], news: Mapping[str, Any]) -> list[str]:
        """Return the changed settings that lead to another cluster, without the old objects."""
        return settings.replacing(olds, news)

    def configure_from(self, given: Mapping[str, Any]) -> None:
        """Take the settings; a cluster that isn't there fails what needs one, not a preview of creation."""
        self._settings = settings.Settings(given)

    def cancel(self) -> None:
        """Stop waiting: whatever is under way fails at its next pause."""
        self._stopping.set()

    # The plan

    def check(
        self, token: str, news: Mapping[str, Any], olds: Mapping[str, Any], name: str, seed: bytes
    ) -> Checked:
        """Return the object to send, with a namespace."""
        version, kind = _kind(token)
        manifest = difference.normalized(difference.declared(news))
        failures = [
            (key, f"{key} is {manifest[key]!r}, but the type {token} has {value!r}")
            for key, value in (("apiVersion", version), ("kind", kind))
            if manifest.setdefault(key, value) not in (value, UNKNOWN)
        ]
        meta = manifest.setdefault("metadata", {})
        if isinstance(meta, dict):
            failures += self._check_metadata(manifest, meta)
        if reason := waiting.unsupported(manifest):
            failures.append(("metadata.annotations", reason))
        if kind == "CustomResourceDefinition" and not has_unknown(spec := manifest.get("spec") or {}):
            defined = spec.get("group", ""), spec.get("names", {}).get("kind", "")
            self._scopes[defined] = spec.get("scope") == "Namespaced"
        return Checked(_with_secrets(manifest), failures)

    def _check_metadata(self, manifest: Object, meta: Object) -> list[tuple[str, str]]:
        failures = []
        if not (given := meta.get("name")):
            failures.append(("metadata.name", "metadata.name isn't given, and the stand-in makes none"))
        elif given is not UNKNOWN and (given in (".", "..") or {*"/%"} & {*str(given)}):
            failures.append(("metadata.name", f"metadata.name is {given!r}: a name has no / and no %"))
        if not meta.get("namespace") and self._settings.api and self._namespaced(manifest):
            meta["namespace"] = self._settings.namespace
        notes = meta.get("annotations")
        for key in sorted(notes) if isinstance(notes, Mapping) else ():
            if key.startswith("pulumi.com/") and key != _SKIP:
                failures.append(("metadata.annotations", f"the stand-in doesn't know the annotation {key}"))
        return failures

    def diff(
        self,
        token: str,
        state: Mapping[str, Any],
        news: Mapping[str, Any],
        ignored: Sequence[str] = (),
        before: Mapping[str, Any] | None = None,
    ) -> Diff:
        """Return the declared fields of the last seen object that differ from the new declaration."""
        if ignored:
            raise UnsupportedError(f"the stand-in doesn't know ignoreChanges: {', '.join(ignored)}")
        live, new = difference.declared(state), difference.normalized(news)
        old = difference.pruned(live, difference.normalized(before or {}))
        old |= {"apiVersion": live.get("apiVersion"), "kind": live.get("kind")}
        old["metadata"] = dict(old.get("metadata") or {})
        if isinstance(new.get("metadata"), Mapping):
            new["metadata"] = dict(new["metadata"])
            for manifest in (old, new) if self._namespaced(new) else ():
                manifest["metadata"].setdefault("namespace", live["metadata"].get("namespace") or "default")
            if not self._namespaced(new):
                old["metadata"].pop("namespace", None)
                new["metadata"].pop("namespace", None)
            old["metadata"]["name"] = live["metadata"]["name"]
        differences = difference.differences(old, new)
        meta = new.get("metadata")
        same_place = isinstance(meta, Mapping) and all(
            meta.get(key) == live["metadata"].get(key) for key in ("name", "namespace")
        )
        replaced = any(manifest.replaces for manifest in differences)
        return Diff(differences, replaced and same_place)

    # What happens to an object

    def create(
        self, token: str, inputs: Mapping[str, Any], *, preview: bool = False, timeout_s: float = 0
    ) -> tuple[str, dict[str, Any]]:
        """Make an object and wait until it is ready; in a preview a dry run, where there is its kind."""
        manifest, manager = dict(inputs), f"{_CREATOR}-{secrets.token_hex(4)}"
        if preview and not self._can_preview(manifest):
            return "", _with_secrets(manifest)
        deadline = _deadline(timeout_s)
        try:
            live = self._make(self._reached(), manifest, preview)
        except ApiServerError as error:
            nowhere = error.status == _GONE and 'namespaces "' in str(error)
            if preview and (nowhere or error.status == requests.codes.forbidden or _exists(error)):
                return "", _with_secrets(manifest)
            hint = _ADOPT if _exists(error) else ""
            raise StandInError(f"{_label(manifest)} wasn't created: {error}", hint) from error
        except UnknownKindError as error:
            hint = "the definition of a custom resource must be there before"
            raise StandInError(f"{_label(manifest)} wasn't created: {error}", hint) from error
        outputs = _outputs(live, manager, str(manifest["apiVersion"]))
        if preview:
            outputs.pop("status", None)
            return "", outputs
        try:
            live = self._await(live, deadline)
        except KubernetesError as error:
            raise CreatedButError(
                f"{_label(manifest)} was created, but {error}", _id(live), outputs
            ) from error
        return _id(live), _outputs(live, manager, str(manifest["apiVersion"]))

    def read(
        self, token: str, id_: str, state: Mapping[str, Any], *, timeout_s: float = 0
    ) -> dict[str, Any] | None:
        """Return the current object; None if it, or its kind, is gone."""
        if not self._settings.api and self._settings.delete_unreachable:
            return None
        version, kind = (state["apiVersion"], state["kind"]) if state else _kind(token)
        namespace, _, name = id_.rpartition("/")
        try:
            live = self._reached().get(version, kind, name, namespace)
        except UnknownKindError:
            return None
        manager = state.get(_MANAGER) or f"{_CREATOR}-{secrets.token_hex(4)}"
        return _outputs(live, manager, state.get(_VERSION, version)) if live else None

    def update(
        self,
        token: str,
        id_: str,
        state: Mapping[str, Any],
        news: Mapping[str, Any],
        *,
        ignored: Sequence[str] = (),
        before: Mapping[str, Any] | None = None,
        preview: bool = False,
        timeout_s: float = 0,
    ) -> dict[str, Any]:
        """Apply an object and wait until it is ready; a CustomResourceDefinition is replaced as a whole."""
        manifest, manager = difference.normalized(news), state[_MANAGER]
        if preview and not self._can_preview(manifest):
            return _with_secrets(manifest)
        api, deadline = self._reached(), _deadline(timeout_s)
        namespace, _, name = id_.rpartition("/")
        place = (manifest["apiVersion"], manifest["kind"], name, namespace)
        if (live := api.get(*place)) is None:
            raise StandInError(f"{_label(manifest)} isn't there any more", "pulumi refresh")
        try:
            live = self._change(api, manifest, live, manager, preview)
            if not preview:
                live = self._await(live, deadline)
        except KubernetesError as error:
            status = error.status if isinstance(error, ApiServerError) else 0
            if preview and status == requests.codes.forbidden:
                return _with_secrets(manifest)
            message = f"{_label(manifest)} wasn't brought up to date: {error}"
            message += f"\n{_OWNERS}" if status == _CONFLICT else ""
            if preview or status >= requests.codes.server_error:
                raise StandInError(message) from error
            outputs = _outputs(api.get(*place) or live, manager, state[_VERSION])
            raise CreatedButError(message, id_, outputs) from error
        return _outputs(live, manager, state[_VERSION])

    def delete(self, token: str, id_: str, state: Mapping[str, Any], *, timeout_s: float = 0) -> None:
        """Delete an object and what it owns, and wait until it is gone."""
        if not self._settings.api and self._settings.delete_unreachable:
            return
        api, manifest = self._reached(), difference.declared(state)
        try:
            current = api.delete(api.path(manifest), propagation="Foreground")
        except UnknownKindError:
            return
        if not current or (annotation(manifest, _SKIP) == "true" and manifest["kind"] in _SKIPPED):
            return
        left: list[str] = []

        def gone() -> bool:
            live = api.get(
                manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"], id_.rpartition("/")[0]
            )
            left[:] = live["metadata"].get("finalizers", []) if live else []
            # One that isn't being deleted has been made since, by somebody else.
            return live is None or "deletionTimestamp" not in live["metadata"]

        try:
            self._until(gone, _deadline(timeout_s))
        except TimeoutError:
            why = f": its finalizers may hold it: {', '.join(left)}" if left else ""
            raise StandInError(f"{_label(manifest)} is still there after its deletion{why}") from None
        except UnknownKindError:
            return

    def inputs_of(
        self, token: str, outputs: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the declared fields with their current values; of an import all that can be declared."""
        plain = {key: value.value if isinstance(value, Secret) else value for key, value in outputs.items()}
        live = difference.declared(plain)
        if before:
            return _with_secrets(difference.pruned(live, difference.normalized(before)))
        manifest = difference.normalized(
            {key: value for key, value in live.items() if key not in _NOT_DECLARED}
        )
        for key in _CONTROLLERS:
            (manifest["metadata"].get("annotations") or {}).pop(key, None)
        return _with_secrets(manifest)

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse all functions: files of YAML, charts and kustomizations aren't supported."""
        raise UnsupportedError(f"the stand-in doesn't know the function {token!r}; it knows none")

    # Steps

    def _make(self, api: Api, manifest: Object, preview: bool) -> Object:
        dry = {"dryRun": "All"} if preview else {}
        for pause_s in (*_RETRIES_S, 0.0):
            try:
                return api.create(manifest, fieldManager=_CREATOR, **dry)
            except (UnknownKindError, ApiServerError) as error:
                missing = isinstance(error, UnknownKindError) or error.status == _GONE
                if not (missing and pause_s) or preview:
                    raise
            self._pause(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _change(self, api: Api, manifest: Object, live: Object, manager: str, preview: bool) -> Object:
        if manifest["kind"] == "CustomResourceDefinition":
            meta = {**manifest["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
            query = {"fieldManager": manager, **({"dryRun": "All"} if preview else {})}
            return dict(api.request("PUT", api.path(manifest), {**manifest, "metadata": meta}, **query))
        taken = owners.taken_over(live["metadata"].get("managedFields") or [], manager)
        if taken is not None and not preview:
            owners.write(api, live, taken)
        unowned = not live["metadata"].get("managedFields")
        force = unowned or (preview and taken is not None)
        return api.apply(manifest, manager, force=force, dry=preview)

    def _await(self, live: Object, deadline: float) -> Object:
        """Return the object once it is ready; KubernetesError names its missing conditions."""
        api, lacks, last = self._reached(), [""], [live]
        version, kind, meta = live["apiVersion"], live["kind"], live["metadata"]

        def ready() -> bool:
            lacks[:] = waiting.missing(api, last[0])
            if not lacks:
                return True
            lacking = api.get(version, kind, meta["name"], meta.get("namespace", ""))
            if lacking is None:
                raise waiting.FailedError("it was deleted while it was waited for")
            last[0] = lacking
            return False

        try:
            self._until(ready, deadline)
        except TimeoutError:
            raise waiting.FailedError("timed out waiting to be ready:\n" + "\n".join(lacks)) from None
        return last[0]

    def _until(self, is_so: Callable[[], bool], deadline: float) -> None:
        """Poll, also while the API server can't be reached; TimeoutError at the end."""
        while True:
            try:
                if is_so():
                    return
            except ApiServerError as error:
                if error.status < requests.codes.server_error:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError
            self._pause(_POLL_S)

    def _pause(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise KubernetesError("the wait was cancelled")

    # What is known of the cluster

    def _reached(self) -> Api:
        if self._settings.api is None:
            raise StandInError(
                f"configured Kubernetes cluster is unreachable: {self._settings.unreachable}",
                "where the cluster is gone, PULUMI_K8S_DELETE_UNREACHABLE=true forgets what was in it",
            )
        return self._settings.api

    def _can_preview(self, manifest: Object) -> bool:
        if self._settings.api is None or has_unknown(manifest):
            return False
        try:
            self._settings.api.namespaced(manifest["apiVersion"], manifest["kind"])
        except UnknownKindError:
            return False
        return True

    def _namespaced(self, manifest: Mapping[str, Any]) -> bool:
        """Of a kind that isn't there yet, and that the program doesn't define, it is assumed."""
        version, kind = str(manifest["apiVersion"]), str(manifest["kind"])
        known = self._scopes.get((difference.group_of(version), kind))
        if known is not None or self._settings.api is None:
            return True if known is None else known
        try:
            return self._settings.api.namespaced(version, kind)
        except UnknownKindError:
            return True


_ADOPT = "take it into the state with `pulumi import`; for a resource that was renamed, give it an alias"
_OWNERS = "somebody else owns what this would change: take it out of the program"


def _deadline(timeout_s: float) -> float:
    return time.monotonic() + (timeout_s or _TIMEOUT_S)


def _kind(token: str) -> tuple[str, str]:
    """apiVersion and kind of a type."""
    _, version, kind = token.split(":")
    group = version.partition("/")[0]
    if group in ("helm.sh", "kustomize", "yaml") or kind.endswith(("List", "Patch")) or "/" not in version:
        raise UnsupportedError(
            f"the stand-in doesn't know the resource type {token!r}: it knows objects only"
        )
    return version.removeprefix("core/"), kind


def _id(manifest: Mapping[str, Any]) -> str:
    meta = manifest["metadata"]
    return "/".join(filter(None, (meta.get("namespace"), meta["name"])))


def _label(manifest: Mapping[str, Any]) -> str:
    return f"{manifest['kind']} {_id(manifest)}"


def _exists(error: ApiServerError) -> bool:
    return error.reason == "AlreadyExists"


def _outputs(live: Mapping[str, Any], manager: str, version: str) -> dict[str, Any]:
    shown = difference.shown({**live, _MANAGER: manager, _VERSION: version})
    return _with_secrets(shown)


def _with_secrets(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Mark a Secret's data as secret, so that the state encrypts it."""
    hidden = {"data", "stringData"} if manifest.get("kind") == "Secret" else set()
    return {key: Secret(value) if key in hidden else value for key, value in manifest.items()}
