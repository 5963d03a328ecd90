"""Private terms that are left, by the field's term: `python -m tools.words [FOLDER] [--json]`.

Each pattern is a word of this project's own that a reader who knows the field would stumble over, with the
term that replaced it (docs/glossary.md). Exit status 1 where a term that is done with is back.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_SUFFIXES = {".py", ".md", ".yaml", ".sh", ".toml", ""}
_KEPT = {"docs/log.md", "CHANGELOG.md", "tools/words.py", "LICENSE"}  # history, and the list itself

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
    r"\bancestor'?s?\b": "activation-extract",
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

LEFT = {
    r"\btold\b": "reported, parsed, verdict",
    r"\bsaid\b": "output, message, reported",
    r"\bhear[ds]?\b": "received, capture",
    r"\bdeal(t| out)?\b": "split, shard, distribute",
    r"\bgo(es)? on\b|\bwent on\b": "resumes, continues",
    r"\btaken for\b": "classified as",
    r"\bnobody\b": "no one, none",
    r"\bmeant\b|\bwanted\b": "target, desired",
    r"\bby hand\b": "manually",
    r"\bexchanges?\b": "collective",
    r"\ba person\b": "a user",
    r"\btried again\b": "retried",
    r"\bkept\b": "stored, cached",
    r"\bmake[s]? anew\b|\bmade anew\b|\bmade again\b": "recreated",
}
"""Still in use, counted so that it shrinks."""


def files(root: Path) -> list[Path]:
    """What git tracks, but for history."""
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    found = [root / name for name in listed.splitlines() if name not in _KEPT]
    found = [path for path in found if path.suffix in _SUFFIXES and path.is_file()]
    return [path for path in found if "decisions" not in path.parts]


def count(root: Path, patterns: dict[str, str]) -> dict[str, int]:
    """How often each pattern occurs."""
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in files(root)]
    return {pattern: sum(len(re.findall(pattern, text)) for text in texts) for pattern in patterns}


def main(arguments: list[str]) -> int:
    """Print both lists; 1 where one of the first is back."""
    named = [one for one in arguments if not one.startswith("-")]
    root = Path(named[0]).resolve() if named else ROOT
    gone, left = count(root, GONE), count(root, LEFT)
    if "--json" in arguments:
        print(json.dumps({"gone": gone, "left": left}))
    else:
        for title, found, terms in (("gone", gone, GONE), ("left", left, LEFT)):
            print(f"{title}: {sum(found.values())}")
            for pattern, times in sorted(found.items(), key=lambda one: -one[1]):
                if times or title == "left":
                    print(f"  {times:>5}  {terms[pattern]:<36} {pattern}")
    return 1 if any(gone.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
