"""Numbers with what they count."""


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
