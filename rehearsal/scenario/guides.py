"""Runs a page's commands as they are printed there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.building import follow_nodes
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step

_ANSWERS = r"y\n" * 9
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> dict[str, str]:
    """Return the commands of a page by section heading; sections without commands are left out."""
    sections = re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    blocks = {section.partition("\n")[0]: "".join(_BLOCK.findall(section)) for section in sections}
    return {heading: lines for heading, lines in blocks.items() if lines}


@step("{page}: {sections}", account="platform-engineer")
def guide(scene: Scene, page: str, sections: tuple[str, ...], timeout_s: float = 1800.0) -> None:
    """Run the commands of a guide as printed, section by section; questions are answered with y."""
    known = commands(scene.program / page)
    for section in sections:
        if section not in known:
            raise ScenarioFailed(f"{page} has no section {section!r} with commands: {', '.join(known)}")
        lines = f"set -e\nstty -echo\n{known[section]}"
        # A terminal, since a question needs section. Few answers: `script` keeps in memory what nobody reads.
        typed = shlex.join(["script", "--quiet", "--return", "--command", shlex.join(["bash", "-c", lines])])
        scene.shell.run(["bash", "-c", f"printf '{_ANSWERS}' | {typed} /dev/null"], timeout_s=timeout_s)
    follow_nodes(scene)
    scene.note.text = f"{sum(len(known[section].splitlines()) for section in sections)} commands"
