"""Runs a page's commands as they are printed there."""

from __future__ import annotations

import itertools
import re
import shlex
from functools import partial
from pathlib import Path

from rehearsal.errors import ScenarioFailed
from rehearsal.scenario.building import follow_nodes
from rehearsal.scenario.scene import Scene
from rehearsal.scenario.step import step

_ANSWERS = r"y\n" * 9
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block that begins so is typed where it logs in.
_LOGIN = re.compile(r"tpu slurm ssh [\w-]+\n")


def commands(page: Path) -> dict[str, str]:
    """Return the commands of a page by section heading, lines that end with \\ joined to the next.

    Sections without commands are left out.
    """
    return {heading: "".join(blocks) for heading, blocks in _blocks(page).items()}


def _blocks(page: Path) -> dict[str, list[str]]:
    sections = re.split(r"^## ", page.read_text(encoding="utf-8").replace("\\\n", ""), flags=re.MULTILINE)
    blocks = {section.partition("\n")[0]: _BLOCK.findall(section) for section in sections}
    return {heading: lines for heading, lines in blocks.items() if lines}


@step("{page}: {sections}", account="platform-engineer")
def guide(
    scene: Scene, page: str, sections: tuple[str, ...], prints: str = "", timeout_s: float = 1800.0
) -> None:
    """Run the commands of a guide as printed, section by section; questions are answered with y.

    A block that begins with `tpu slurm ssh` is typed in a terminal, line by line, each once the prompt is
    back; its last line logs out. The output of all must match `prints`.
    """
    known, printed, count = _blocks(scene.program / page), "", 0
    for section in sections:
        if section not in known:
            raise ScenarioFailed(f"{page} has no section {section!r} with commands: {', '.join(known)}")
        for login, blocks in itertools.groupby(known[section], lambda block: bool(_LOGIN.match(block))):
            for lines in blocks if login else ["".join(blocks)]:
                run = scene.shell.typed if login else partial(_answered, scene)
                printed += run(lines, timeout_s)
                count += len(lines.splitlines())
    if not re.search(prints, printed):
        raise ScenarioFailed(f"{page}, {', '.join(sections)}: nothing printed matches {prints!r}")
    follow_nodes(scene)
    scene.note.text = f"{count} commands"


def _answered(scene: Scene, lines: str, timeout_s: float) -> str:
    # A terminal, since a question needs one. Few answers: `script` keeps in memory what nobody reads.
    line = shlex.join(["bash", "-c", f"set -e\nstty -echo\n{lines}"])
    typed = shlex.join(["script", "--quiet", "--return", "--command", line])
    command = ["bash", "-c", f"printf '{_ANSWERS}' | {typed} /dev/null"]
    return scene.shell.run(command, timeout_s=timeout_s)
