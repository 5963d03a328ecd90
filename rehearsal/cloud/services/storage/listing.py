"""storage.objects.list: prefixes, delimiters, globs, offsets and pages over a bucket's names."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from rehearsal.cloud.core.errors import NotEmulatedError, bad_request
from rehearsal.cloud.services.storage.versions import Objects, Version

MAX_RESULTS = 1000


@dataclass(frozen=True)
class Page:
    """A page: versions and prefixes, and the start of the next one."""

    versions: list[Version]
    prefixes: list[str]
    next_token: str | None


@dataclass(frozen=True)
class _Options:
    prefix: str
    delimiter: str
    start: str
    end: str
    versions: bool
    trailing: bool
    folders: bool
    glob: re.Pattern[str] | None
    limit: int


def list_page(objects: Objects, query: Mapping[str, Any]) -> Page:
    """Return the page of a query; items and prefixes together fill it, as at Google."""
    options = _options(query)
    after_name, after_generation = _decode(query.get("pageToken"))
    items: list[Version] = []
    prefixes: list[str] = []
    last = ("", 0)
    scan = objects.scan(
        options.prefix,
        max(options.start, after_name),
        versions=options.versions,
        folders=options.folders,
    )
    entry = next(scan, None)
    while entry is not None:
        name, versions = entry
        if options.end and name >= options.end:
            break
        # A name with the delimiter behind the prefix is listed as a prefix, once for all that share it.
        folder = _folder(name, options)
        if folder is not None:
            if folder > after_name:
                if len(items) + len(prefixes) == options.limit:
                    return Page(items, prefixes, _encode(*last))
                prefixes.append(folder)
                last = (folder, 0)
            if name == folder and options.trailing:
                items += versions
            entry = _jump(scan, folder)
            continue
        # Other names are listed with each of their generations; a page may end between two of them.
        if options.glob is None or options.glob.fullmatch(name):
            for version in versions:
                if name == after_name and (version.generation <= after_generation or not options.versions):
                    continue
                if len(items) + len(prefixes) >= options.limit:
                    return Page(items, prefixes, _encode(*last))
                items.append(version)
                last = (name, version.generation)
        entry = next(scan, None)
    return Page(items, prefixes, None)


def _jump(
    scan: Generator[tuple[str, list[Version]], str | None, None], folder: str
) -> tuple[str, list[Version]] | None:
    """Return the first entry behind all names that begin with the folder."""
    try:
        return scan.send(folder[:-1] + chr(ord(folder[-1]) + 1))
    except StopIteration:
        return None


def _folder(name: str, options: _Options) -> str | None:
    """Return the prefix that stands for this name, or None if the name is listed itself."""
    if not options.delimiter:
        return None
    at = name.find(options.delimiter, len(options.prefix))
    return None if at < 0 else name[: at + len(options.delimiter)]


def _options(query: Mapping[str, Any]) -> _Options:
    limit = int(query.get("maxResults") or MAX_RESULTS)
    delimiter = query.get("delimiter") or ""
    glob = query.get("matchGlob")
    if glob and delimiter:
        raise NotEmulatedError("matchGlob together with delimiter")
    if truth(query, "includeFoldersAsPrefixes") and delimiter != "/":
        raise bad_request("includeFoldersAsPrefixes requires that delimiter is '/'.")
    if query.get("filter"):
        raise NotEmulatedError("The filter parameter (object contexts)")
    return _Options(
        prefix=query.get("prefix") or "",
        delimiter=delimiter,
        start=query.get("startOffset") or "",
        end=query.get("endOffset") or "",
        versions=truth(query, "versions"),
        trailing=truth(query, "includeTrailingDelimiter"),
        folders=truth(query, "includeFoldersAsPrefixes"),
        glob=_glob(glob) if glob else None,
        limit=min(max(limit, 1), MAX_RESULTS),
    )


def truth(query: Mapping[str, Any], name: str) -> bool:
    """Return a boolean query parameter, parsed or as text."""
    return query.get(name) in (True, "true", "True")


def _encode(name: str, generation: int) -> str:
    return base64.urlsafe_b64encode(f"{generation}:{name}".encode()).decode()


def _decode(token: str | None) -> tuple[str, int]:
    """Return the last entry of the page before: (name or prefix, generation)."""
    if not token:
        return "", 0
    try:
        generation, _, name = base64.urlsafe_b64decode(token).decode().partition(":")
        return name, int(generation)
    except (binascii.Error, ValueError):
        raise bad_request(f"Invalid pageToken: '{token}'.") from None


def _glob(pattern: str) -> re.Pattern[str]:
    """matchGlob's syntax (https://cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob)."""
    translated = ""
    depth = 0
    tokens = re.compile(r"\*\*|\*|\?|\[[!^]?[^\]]+\]|[{},]|.", re.DOTALL)
    for token in tokens.findall(pattern):
        if token == "**":
            translated += ".*"
        elif token == "*":
            translated += "[^/]*"
        elif token == "?":
            translated += "[^/]"
        elif token == "{":
            translated += "(?:"
            depth += 1
        elif token == "}" and depth:
            translated += ")"
            depth -= 1
        elif token == "," and depth:
            translated += "|"
        elif token.startswith("[") and len(token) > 1:
            translated += "[" + ("^" + token[2:] if token[1] in "!^" else token[1:])
        else:
            translated += re.escape(token)
    if depth:
        raise bad_request(f"Invalid matchGlob '{pattern}': a brace is not closed.")
    return re.compile(translated, re.DOTALL)
