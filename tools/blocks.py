"""Generated blocks of a document.

A block stands between `<!-- begin generated: NAME -->` and `<!-- end generated: NAME -->`.
"""

from collections.abc import Mapping


def filled(document: str, blocks: Mapping[str, str], name: str) -> str:
    """`document`, the text of the file `name`, with its blocks replaced.

    Raises:
        SystemExit: a block isn't there.
    """
    for block, text in blocks.items():
        begin, end = (f"<!-- {word} generated: {block} -->" for word in ("begin", "end"))
        head, result, rest = document.partition(begin)
        _, closed, tail = rest.partition(end)
        if not result or not closed:
            raise SystemExit(f"{name} lacks the block between {begin} and {end}")
        document = f"{head}{begin}\n{text}\n{end}{tail}"
    return document
