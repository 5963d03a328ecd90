"""Positions to keep, by words: `all`, `last`, `every:8`, `role:assistant`, `5`, `-2`; several add up."""

import difflib
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workload.data.stream import Stream
from workload.errors import Problem

ALL = "all"
WORD = re.compile(r"last|every:(?P<step>[1-9]\d{0,8})|role:(?P<role>.+)|(?P<number>-?\d{1,9})")


def unknown(words: Sequence[str]) -> list[Problem]:
    """Return the problems of words that select nothing of any stream."""
    problems = []
    for word in words if tuple(words) != (ALL,) else ():
        if not WORD.fullmatch(word):
            rule = f'must be alone, or leave it out for "{ALL}"' if word == ALL else "selects no positions"
            problems.append(_problem(word, rule, f"one of {ALL}, last, every:8, role:assistant, 5, -2"))
    return problems


def parse(words: Sequence[str], stream: Stream) -> tuple[NDArray[np.bool_] | None, list[Problem]]:
    """Return True for each token of the stream to keep, and the words' problems; None for all tokens."""
    if tuple(words) == (ALL,):
        return None, []
    kept_T, problems = np.zeros(len(stream.tokens_T), bool), unknown(words)
    for word in words:
        if not (parsed := WORD.fullmatch(word)):
            continue
        if parsed["role"]:
            problems += _role(parsed["role"], stream, kept_T)
        elif parsed["step"]:
            problems += _every(int(parsed["step"]), stream, kept_T)
        else:
            problems += _number(word, int(parsed["number"] or -1), stream, kept_T)
    if not problems and not kept_T.any():
        problems.append(_problem(", ".join(words), "keeps no token of this stream", "name other positions"))
    return kept_T, problems


def _number(word: str, number: int, stream: Stream, kept_T: NDArray[np.bool_]) -> list[Problem]:
    lengths_N = np.diff(stream.offsets)
    short_N = lengths_N <= number if number >= 0 else lengths_N < -number
    if short_N.any():
        first = int(short_N.argmax())
        rule = f"document {stream.ids[first]!r} has only {lengths_N[first]} tokens"
        fix = f"{-lengths_N.min()} to {lengths_N.min() - 1}, which all {len(stream)} documents have"
        return [_problem(word, rule, fix)]
    kept_T[(stream.offsets[:-1] if number >= 0 else stream.offsets[1:]) + number] = True
    return []


def _every(step: int, stream: Stream, kept_T: NDArray[np.bool_]) -> list[Problem]:
    lengths_N = np.diff(stream.offsets)
    if len(stream) and step >= lengths_N.max():
        rule = f"keeps first tokens alone: the longest document has {lengths_N.max()}"
        return [_problem(f"every:{step}", rule, 'a smaller step, or "0" for the first tokens')]
    positions_T = np.arange(len(kept_T)) - np.repeat(stream.offsets[:-1], lengths_N)
    kept_T |= positions_T % step == 0
    return []


def _role(role: str, stream: Stream, kept_T: NDArray[np.bool_]) -> list[Problem]:
    roles = stream.about.roles
    if not roles:
        fix = "make the streams of conversations, with `workload data streams --chat`"
        return [_problem(f"role:{role}", "the stream's tokens have no roles", fix)]
    if role not in roles:
        near = difflib.get_close_matches(role, roles, n=1) or roles
        return [_problem(f"role:{role}", "no message of the stream has it", f"one of {', '.join(near)}")]
    kept_T |= stream.roles_T == 1 + roles.index(role)
    return []


def _problem(word: str, rule: str, fix: str) -> Problem:
    return Problem("extract.positions", word, rule, fix)
