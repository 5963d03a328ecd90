"""Cloud Storage's XML API, of which reads alone are served: in terms of the JSON API.

https://cloud.google.com/storage/docs/xml-api/overview. Go's storage client reads with it.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote, unquote, urlencode

from aiohttp import web

_HOST = "storage.googleapis.com"
_JSON_PATHS = ("/storage/", "/upload/", "/resumable/", "/download/", "/batch")
_SIGNATURES = ("X-Goog-Signature", "X-Amz-Signature", "Signature")


def as_json_api(host: str, raw_path: str, query: str, request: web.Request) -> tuple[str, str]:
    """A download (`/BUCKET/OBJECT`) as the JSON API's path and query; other requests as they are."""
    if host != _HOST or request.method not in ("GET", "HEAD") or raw_path.startswith(_JSON_PATHS):
        return raw_path, query
    bucket, _, name = raw_path.removeprefix("/").partition("/")
    if not bucket or not name:
        return raw_path, query
    parameters = {key: values[-1] for key, values in parse_qs(query).items()}
    parameters["alt"] = "media"
    for header, parameter in (
        ("X-Goog-If-Generation-Match", "ifGenerationMatch"),
        ("X-Goog-If-Metageneration-Match", "ifMetagenerationMatch"),
    ):
        if header in request.headers:
            parameters[parameter] = request.headers[header]
    return f"/download/storage/v1/b/{bucket}/o/{quote(unquote(name), safe='')}", urlencode(parameters)


def not_emulated(host: str, raw_path: str, request: web.Request) -> str:
    """What the request wants of Cloud Storage that Google does and this cloud doesn't, or nothing."""
    if host.endswith(f".{_HOST}"):
        return f"A bucket's own host name ({host})"
    if host != _HOST:
        return ""
    if any(name in request.query for name in _SIGNATURES):
        return "A signed URL"
    return "" if raw_path.startswith(_JSON_PATHS) else f"Cloud Storage's XML API: {request.method} {raw_path}"
