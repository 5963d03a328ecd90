"""Checks of every HTML page."""

import re
import xml.dom.minidom
from html.parser import HTMLParser


class _Nesting(HTMLParser):
    """Fails where an element isn't closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pictures(text: str) -> list[str]:
    """Return the SVGs of a page."""
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


def assert_stands_alone(text: str) -> None:
    """Fail unless a page is well formed, loads nothing, and has colours for the dark."""
    nesting = _Nesting()
    nesting.feed(re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL))
    assert nesting.open == []
    for picture in pictures(text):
        xml.dom.minidom.parseString(picture)
    assert not re.search(r'\bsrc=|href="(?!#)|@import|<script|<link|url\((?!#)', text)
    assert "width=device-width" in text
    assert "prefers-color-scheme: dark" in text
