"""200 mutants of good settings; `python -m tests.proofs settings` tries 1,000, and the emulated cloud."""

from collections import Counter
from pathlib import Path

from tests.infra.settings.mutants import Mutant, endless, good, judged, missing, mutants, refused_by_up

UP = 4
"""Accepted ones that are shown to be good; each costs a program of every layer."""


def test_what_mutants_are_made_of_is_good(tmp_path: Path) -> None:
    for name, values in good().items():
        assert judged(Mutant(values, "none", ()), tmp_path) == [], name
        assert refused_by_up(values) == "", name


def test_no_text_is_endless(tmp_path: Path) -> None:
    longer = list(endless())
    assert len(longer) >= 50
    for mutant in longer:
        assert missing(mutant, judged(mutant, tmp_path)) == [], mutant.label


def test_every_mutant_is_refused_with_all_its_problems_or_goes_up(tmp_path: Path) -> None:
    kinds: Counter[tuple[bool, bool]] = Counter()
    accepted: dict[str, Mutant] = {}
    for mutant in mutants(200, seed=19):
        output = judged(mutant, tmp_path)
        assert missing(mutant, output) == [], f"{mutant.kind} of {mutant.label}: {output}"
        kinds[len(mutant.where) == 2, bool(output)] += 1
        if not output:
            accepted[mutant.label] = mutant
    assert kinds[True, True] >= 30, "two problems at once"
    assert kinds[True, False] == 0
    assert kinds[False, True] >= 80
    assert len(accepted) >= UP
    for mutant in list(accepted.values())[:UP]:
        refusal = refused_by_up(mutant.values)
        assert not refusal or "fix: " in refusal, mutant.label
