"""The site of docs/, by mkdocs-material: built strictly, and every link of its pages leads somewhere."""

import os
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from tools.blocks import ROOT


class Page(HTMLParser):
    """Links and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        self.links.add(values.get("href" if tag in ("a", "link") else "src") or "")


def broken(site: Path) -> Iterator[str]:
    """Yield the links within a site that lead to no file, or to no id of it."""
    pages = {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if "://" in target or target.startswith(("data:", "mailto:", "javascript:")):
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (anchor and file in pages and unquote(anchor) not in pages[file].ids):
                yield f"{path.relative_to(site)}: {link}"


def test_the_site_is_built_strictly_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    installed = subprocess.run(
        ["tools/setup.sh", "site"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    mkdocs = installed.stdout.splitlines()[-1]
    line = [mkdocs, "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    built = subprocess.run(
        line, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    assert built.returncode == 0, built.stderr
    pages = {
        path.relative_to(tmp_path / "site").parts[0] for path in (tmp_path / "site").glob("*/*/index.html")
    }
    assert pages >= {"guides", "reference", "concepts", "internals", "runbooks"}
    assert "Google may preempt" in (tmp_path / "site" / "index.html").read_text("utf-8")
    assert [*broken(tmp_path / "site")] == []


def test_a_link_of_a_site_to_no_file_or_no_id_is_reported(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "index.html").write_text('<a href="b/#x">b</a><a href="b/#y">y</a><img src="c.png">')
    (tmp_path / "b" / "index.html").write_text('<h1 id="x">b</h1><a href="../">up</a><a href="#x">x</a>')
    assert sorted(broken(tmp_path)) == ["index.html: b/#y", "index.html: c.png"]
