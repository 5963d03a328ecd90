"""A problem of a setting, in one form for all programs."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """Problem of a setting.

    Attributes:
        path: of the key, e.g. `model.heads`, `storage:bucketName` or `$WORKER_ID`.
        value: as the user would write it.
        rule: requirement that it violates.
        fix: instruction for the user.
    """

    path: str
    value: str
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.path} = {self.value}: {self.rule}\n    fix: {self.fix}"


def listed(source: str, problems: Sequence[object]) -> str:
    """Format problems below a line that counts them."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{count} in {source}:", *(f"  {problem}" for problem in problems)])
