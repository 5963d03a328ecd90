"""Hooks of mkdocs: README as the first page, folders in the navigation, links out of docs/.

https://www.mkdocs.org/user-guide/configuration/#hooks and …/dev-guide/plugins/#events.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_LISTED_AS_CODE = re.compile(r"^(?: {4}|\t)")


def on_config(config: Any) -> Any:
    """Replace each folder of the navigation (`guides/`) by its pages that aren't listed."""
    listed = {*_pages(config["nav"])}
    config["nav"] = _expanded(config["nav"], listed)
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add README.md as the first page, and the style sheet."""
    text = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "index.md", content=text))
    style = Path(__file__).with_name("site.css").read_text("utf-8")
    files.append(File.generated(config, "site.css", content=style))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links that leave docs/ into links to the repository (`repo_url`), or into their text."""
    folder = posixpath.dirname(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        target = match[3]
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        if page.file.src_uri == "index.md" and not (ROOT / "docs" / target).exists():
            inside = posixpath.join("..", target)
        else:
            inside = posixpath.normpath(posixpath.join(folder, target))
        if files.get_file_from_path(inside):
            return match[0]
        path = posixpath.normpath(posixpath.join("docs", inside))
        if not (ROOT / path).exists():
            return match[0]  # reported by mkdocs
        return f"[{match[2]}]({config['repo_url']}/blob/main/{path})" if config["repo_url"] else match[2]

    lines = markdown.split("\n")
    return "\n".join(line if _LISTED_AS_CODE.match(line) else _LINK.sub(replaced, line) for line in lines)


def _pages(nav: Any) -> list[str]:
    """Return the pages that a navigation lists."""
    if isinstance(nav, str):
        return [nav]
    return [page for item in (nav.values() if isinstance(nav, dict) else nav) for page in _pages(item)]


def _expanded(nav: Any, listed: set[str]) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(item, listed) for title, item in nav.items()}
    if not isinstance(nav, list):
        return nav
    items = []
    for item in nav:
        if isinstance(item, str) and item.endswith("/"):
            names = sorted(f"{item}{path.name}" for path in (ROOT / "docs" / item).glob("*.md"))
            items += [name for name in names if name not in listed]
        else:
            items.append(_expanded(item, listed))
    return items
