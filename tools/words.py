"""Check the field's words: `python -m tools.words [FOLDER] [--json]`.

Terms of this project's own that gave way to the field's (docs/concepts/glossary.md) may not come back.
In Python no docstring begins with a question word or a pronoun, and no name is a pronoun or a verb of
speech. Exits with 1 where a rule is broken.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SUFFIXES = {".py", ".md", ".yaml", ".sh", ".toml", ""}
_KEPT = {"docs/internals/log.md", "CHANGELOG.md", "tools/words.py", "LICENSE"}  # history, and the list itself

GONE = {
    r"\bwords/": "heartbeats/",
    r"\bclass Word\b|\bWord\.of_host\b": "Heartbeat, WorkerStatus",
    r"\bclass Look\b|\blook: Look\b": "Observation",
    r"\bSeen\b": "ObservedNode",
    r"\bBooks?\b|\bborrowed\b": "state store",
    r"\bclass Memory\b|fleet\.memory": "controller state",
    r"\bsign of life\b": "leader lease, renew",
    r"\b_?wish(es)?\b": "desired",
    r"\b_?dice\b": "rng",
    r"\bhandbook\b": "docs generator",
    r"\b[Ee]verywhere\(": "exec on all workers",
    r"\bstory\b|\bstories\b|\bStoryFailed\b": "scenario",
    r"\bnote_strike\b|\b[Ss]trike a node\b|- strike:": "fault, interrupt, preempt",
    r"\bwarden\b": "supervisor",
    r"\bthe plug\b(?!-)|\bhow: plug\b|\bplug pulled\b": "power loss",
    r"\bancestors?\b(?! =)": "activation-extract",
    r"\bJournal\(.*run|\bclass Ledger\b|\bLasting\b": "step log, goodput, durable copies",
    r"\badopt(s|ed|ing|Bucket)?\b": "import",
    r"\bother_?[zZ]ones\b": "fallback zones",
    r"\bsilenceS\b|\bsilence_s\b": "heartbeat timeout",
    r"--most-tokens|\bmost_tokens\b": "--max-tokens",
    r"\bset[-_]aside\b": "rejected",
    r"\ba way to the internet\b": "Cloud NAT egress",
    r"\bfor ever\b": "permanently",
    r"fleet recreate-preempted": "recover",
    r"\bRooms? with\b|\brooms of this house\b": "package",
    r"\bact a (story|scenario) out\b": "run a scenario",
    r"\bwrongly asked\b": "usage error",
    r"\bbroken off\b": "interrupted",
    r"\ball of it numbers\b": "all values finite",
    r"\bnobody has asked\b": "no cached result",
    r"\basked for by nobody\b": "orphaned",
    r"\bwhatever became of the rest\b": "regardless of other checks",
    r"\bcomes right with\b": "recovers after",
    r"\bwhat waiting doesn't mend\b": "non-retryable errors",
}
"""By pattern, the field's term; none of these may come back."""

_OPENING = re.compile(
    r"(What|Whether|Where|How|Which|Who|Whose|Whom|When|Why|Whatever|Whoever|Wherever"
    r"|One|Those|That|This|Nothing|Nobody|Somebody|Everything)\b"
)
PRONOUNS = {
    *(
        "one",
        "found",
        "some",
        "each",
        "ours",
        "theirs",
        "there",
        "here",
        "another",
        "somebody",
        "nobody",
        "whoever",
    ),
    *("say", "says", "said", "tell", "tells", "told", "hear", "hears", "heard", "ask", "asks", "asked"),
}
"""Names that say nothing of a value, or name I/O by speech."""


def files(root: Path) -> list[Path]:
    """Return the tracked files, without history."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    paths = [root / name for name in listed.splitlines() if name not in _KEPT]
    paths = [path for path in paths if path.suffix in _SUFFIXES and path.is_file()]
    return [path for path in paths if "decisions" not in path.parts]


def terms(root: Path) -> dict[str, int]:
    """Return the occurrences of each private term, by pattern."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files(root)]
    return {pattern: sum(len(re.findall(pattern, text)) for text in texts) for pattern in GONE}


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the rule of each docstring and name that breaks one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and (opening := _OPENING.match(text)):
                yield (
                    node.body[0].lineno,
                    f"docstring begins with {opening[0]!r}: name the thing, or what is done",
                )
        for name in _bound(node):
            if name.strip("_") in PRONOUNS:
                yield getattr(node, "lineno", 1), f"name {name!r}: call it by what it holds or does"


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name)
        ):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name


def main(arguments: list[str]) -> int:
    """Print every broken rule; 1 where there is one."""
    named = [word for word in arguments if not word.startswith("-")]
    root = Path(named[0]).resolve() if named else ROOT
    gone = {pattern: count for pattern, count in terms(root).items() if count}
    wrong = [
        f"{path.relative_to(root)}:{line}: {rule}"
        for path in files(root)
        if path.suffix == ".py"
        for line, rule in problems(path.read_text(encoding="utf-8"))
    ]
    if "--json" in arguments:
        print(json.dumps({"terms": gone, "names and docstrings": wrong}))
    else:
        for pattern, count in gone.items():
            print(f"{count:>5}  {pattern}: write {GONE[pattern]}")
        print("\n".join([*wrong, f"{sum(gone.values())} private terms, {len(wrong)} names and docstrings"]))
    return int(bool(gone or wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
