"""Draw pages as they look in a browser: wide and on a phone, in the light and in the dark.

    python tools/pictures.py rehearsal-report/fleet.html --out docs/pictures --wide light --phone dark

Needs chromium on PATH (Debian: apt-get install chromium fonts-dejavu-core).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

WIDE, PHONE = 1280, 420
_NARROWEST = 500  # no window of a headless Chromium is narrower: a phone's page goes into a frame
_DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
_TALLEST = 2400


def main(arguments: list[str]) -> int:
    """Draw each page in each way that is asked for; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python tools/pictures.py", description=(__doc__ or "").partition("\n")[0],
        epilog="example: python tools/pictures.py rehearsal-report/*.html",
    )  # fmt: skip
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE", help="an HTML file")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="(%(default)s)")
    for flag in ("wide", "phone"):
        parser.add_argument(f"--{flag}", nargs="*", choices=("light", "dark"), default=("light", "dark"))
    options = parser.parse_args(arguments)
    if (chromium := shutil.which("chromium")) is None:
        print(
            "error: no chromium on PATH\n    fix: apt-get install chromium fonts-dejavu-core", file=sys.stderr
        )
        return 1
    for page in options.pages:
        for width, schemes in ((WIDE, options.wide), (PHONE, options.phone)):
            for scheme in schemes:
                out = options.out / f"{page.stem}-{width}-{scheme}.png"
                draw(chromium, page.resolve(), out, width, scheme == "dark")
                print(out)
    return 0


def draw(chromium: str, page: Path, out: Path, width: int, dark: bool) -> None:
    """Draw a page from its top to its last line, or to a phone's sixth screen."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        frame = Path(folder, "frame.html")
        style = f"border:0;width:{width}px;height:{_TALLEST}px;display:block"
        frame.write_text(f'<body style="margin:0"><iframe src="file://{page}" style="{style}"></iframe>')
        line = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        line += ["--allow-file-access-from-files", f"--window-size={max(width, _NARROWEST)},{_TALLEST}"]
        line += [f"--screenshot={out}", *(_DARK if dark else ()), f"file://{frame}"]
        subprocess.run(line, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with Image.open(out) as drawn:
        picture = drawn.convert("RGB").crop((0, 0, width, _TALLEST))
    picture.crop((0, 0, width, _end(picture))).quantize(96).save(out, optimize=True)


def _end(picture: Image.Image) -> int:
    """Below the last row that isn't all background, with a margin."""
    background = Image.new("RGB", picture.size, picture.getpixel((2, picture.height - 2)))
    box = ImageChops.difference(picture, background).getbbox()
    return min(picture.height, (box[3] if box else picture.height) + 16)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
