"""gcp:storage/bucketObject:BucketObject: an object's bytes go up in one multipart request."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.providers.gcp import mapping
from rehearsal.providers.gcp.lifecycle import Context, PlannedUpdate, Resource
from rehearsal.providers.gcp.settings import Settings
from rehearsal.providers.gcp.table import STORAGE, Update
from rehearsal.providers.plugin.errors import StandInError
from rehearsal.providers.plugin.provider import Difference
from rehearsal.providers.plugin.values import UNKNOWN, Asset


def _never_differs(_wanted: Any, _current: Any) -> bool:
    """Return True: the bytes are compared by their hash instead."""
    return True


class BucketObject(Resource):
    """An object whose bytes the program gives, as text or as a file."""

    def differences(
        self,
        inputs: Mapping[str, Any],
        state: Mapping[str, Any],
        settings: Settings,
        ignored: Sequence[str],
    ) -> list[Difference]:
        """Return the properties' differences, and the content's if its hash isn't the stored object's."""
        differences = super().differences(inputs, state, settings, ignored)
        name = "content" if inputs.get("content") is not None else "source"
        if inputs.get(name) is not UNKNOWN and not _is_stored(inputs, state):
            differences.append(Difference(name, name, "UPDATE", replaces=False))
        return [d for d in differences if d.name not in ignored]

    def insert(self, context: Context, planned: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
        """Upload the object; Cloud Storage's uploads stand under the origin, whatever the base is."""
        about = mapping.body(self.table.inputs, planned, inputs)
        content, boundary = _content(planned), uuid.uuid4().hex
        media_type = planned.get("contentType") or "text/plain; charset=utf-8"
        parts = (("application/json", json.dumps(about).encode()), (media_type, content))
        data = b"".join(
            f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() + part + b"\r\n" for kind, part in parts
        )
        context.send(
            self.table.service,
            "POST",
            f"/upload/storage/v1/b/{planned['bucket']}/o",
            body=data + f"--{boundary}--\r\n".encode(),
            content_type=f"multipart/related; boundary={boundary}",
            query={"name": planned["name"], "uploadType": "multipart"},
            library=True,
        )

    def patch(self, context: Context, request: Update, change: PlannedUpdate) -> None:
        """Upload the object anew: that is how its content changes."""
        self.insert(context, change.planned, change.inputs)

    def read(self, context: Context, id_: str, prior: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the object's metadata, with its hash in the two spellings of the official provider."""
        outputs = super().read(context, id_, prior)
        if outputs is None:
            return None
        return {**outputs, "md5hexhash": base64.b64decode(outputs["md5hash"]).hex()}

    def known(self, id_: str, prior: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
        """Return the state's properties: an id `bucket-name` can't be split.

        An import's id is `bucket/name`.
        """
        bucket, slash, name = id_.partition("/")
        if not slash and not prior.get("bucket"):
            raise StandInError(f"BucketObject id {id_!r} doesn't have the form bucket/name")
        return dict(prior) if prior.get("bucket") else {"bucket": bucket, "name": name}


def _is_stored(inputs: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return True if the stored object has the program's bytes."""
    source = inputs.get("source")
    if isinstance(source, Asset) and not source.is_here:  # the engine passes unchanged assets by digest
        before = state.get("source")
        return isinstance(before, Asset) and before.digest == source.digest
    return _md5(_content(inputs)) == state.get("md5hash")


def _content(values: Mapping[str, Any]) -> bytes:
    if isinstance(values.get("content"), str):
        return str(values["content"]).encode()
    source = values.get("source")
    if not isinstance(source, Asset):
        raise StandInError("a BucketObject needs `content` or `source`")
    return source.read()


def _md5(content: bytes) -> str:
    return base64.b64encode(hashlib.md5(content).digest()).decode()


_SAME = {"rest": None, "same": _never_differs}

BUCKET_OBJECT = BucketObject(
    "gcp:storage/bucketObject:BucketObject",
    STORAGE,
    "b/{bucket}/o/{name}",
    (
        Update(
            "content source contentType cacheControl contentDisposition contentEncoding contentLanguage"
            " metadata storageClass"
        ),
    ),
    {
        "name": {"is": "never", "decode": None},
        "content source": _SAME,
        "detectMd5hash": {"is": "at=md5Hash never", "same": _never_differs},
        "md5hash": "at=md5Hash",
        "md5hexhash": "local",
        "outputName": "at=name",
        # Not recorded, so not taken from a program.
        "kmsKeyName eventBasedHold temporaryHold": "output",
    },
    id="{bucket}-{name}",
    quoted=("name",),
    client_library=True,
)
