"""The image's recipe, without building it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rehearsal.hosts.errors import HostError
from rehearsal.hosts.image import claim, find_mirror, prune

DEB822 = """# the security archive comes first and is not what we want
Types: deb
URIs: http://mirror.test/security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://mirror.test/debian http://second.test/debian
Suites: bookworm bookworm-updates
Components: contrib main
"""


def _apt(tmp_path: Path, name: str, text: str) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / name).write_text(text)
    return tmp_path


def test_mirror_is_the_first_of_the_suites_stanza(tmp_path: Path) -> None:
    apt = _apt(tmp_path, "sources.list.d/debian.sources", DEB822)
    assert find_mirror(apt) == "http://mirror.test/debian"


def test_a_disabled_stanza_is_no_mirror(tmp_path: Path) -> None:
    apt = _apt(tmp_path, "sources.list.d/debian.sources", DEB822 + "Enabled: no\n")
    with pytest.raises(HostError, match="no apt source for Debian bookworm"):
        find_mirror(apt)


@pytest.mark.parametrize(
    "line",
    [
        "deb http://mirror.test/debian bookworm main",
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm non-free main",
    ],
)
def test_mirror_in_the_one_line_format(tmp_path: Path, line: str) -> None:
    apt = _apt(tmp_path, "sources.list", f"deb-src http://no.test/debian bookworm main\n{line}\n")
    assert find_mirror(apt) == "http://mirror.test/debian"


def test_another_suite_is_no_mirror_and_the_error_has_the_right_one(tmp_path: Path) -> None:
    apt = _apt(tmp_path, "sources.list", "deb http://mirror.test/debian trixie main\n")
    with pytest.raises(HostError) as refused:
        find_mirror(apt)
    assert "bookworm main" in refused.value.fix


def test_the_two_newest_images_are_kept_and_whichever_a_world_uses(tmp_path: Path) -> None:
    for age in range(5):
        (tmp_path / f"image-{age}" / "etc").mkdir(parents=True)
        os.utime(tmp_path / f"image-{age}", (1e9 - age, 1e9 - age))
    (tmp_path / "image.lock").touch()
    (tmp_path / "image-9.partial" / "etc").mkdir(parents=True)
    used = claim(tmp_path / "image-3")
    prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image-0", "image-1", "image-3", "image.lock"]
    os.close(used)
    prune(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image-0", "image-1", "image.lock"]
