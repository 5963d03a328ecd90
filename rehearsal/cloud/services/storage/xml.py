"""Cloud Storage's XML API, of which reads alone are served: in terms of the JSON API.

https://cloud.google.com/storage/docs/xml-api/overview. Go's storage client reads with it.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote, unquote, urlencode

from aiohttp import web

_HOST = "storage.googleapis.com"
_JSON_PATHS = ("/storage/", "/upload/", "/resumable/", "/download/", "/batch")
_SIGNATURES = ("X-Goog-Signature", "X-Amz-Signature", "Signature")


class XmlApi:
    """Translates downloads of the XML API; a `Translator` of the front door."""

    def translate(self, request: web.Request, host: str, path: str, query: str) -> tuple[str, str, str]:
        """Return the JSON API's path and query of a download (`/BUCKET/OBJECT`); others as they are.

        The third value is a feature of Cloud Storage that the emulation lacks, or "".
        """
        if host.endswith(f".{_HOST}"):
            return path, query, f"A bucket's own host name ({host})"
        if host != _HOST:
            return path, query, ""
        missing = "A signed URL" if any(name in request.query for name in _SIGNATURES) else ""
        if path.startswith(_JSON_PATHS):
            return path, query, missing
        bucket, _, name = path.removeprefix("/").partition("/")
        if request.method not in ("GET", "HEAD") or not bucket or not name:
            return path, query, missing or f"Cloud Storage's XML API: {request.method} {path}"
        parameters = {key: values[-1] for key, values in parse_qs(query).items()}
        parameters["alt"] = "media"
        for header, parameter in (
            ("X-Goog-If-Generation-Match", "ifGenerationMatch"),
            ("X-Goog-If-Metageneration-Match", "ifMetagenerationMatch"),
        ):
            if header in request.headers:
                parameters[parameter] = request.headers[header]
        path = f"/download/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}"
        return path, urlencode(parameters), missing
