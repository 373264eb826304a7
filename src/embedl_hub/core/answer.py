"""JSON that a board or a program answered: parsed as data, within bounds that a parser alone does not have."""

from __future__ import annotations

import json

# The largest honest answer is a profile: a hundred thousand samples are two million characters.
_MOST_CHARACTERS = 16 << 20
_MOST_VALUES = 1_000_000
# Lists and objects cost a hundred times their two characters.
_MOST_CONTAINERS = 200_000


def parse_answer(text: str, *, strict: bool = True) -> object:
    """Return what JSON text says; a ``ValueError`` for what is none, or would take more memory than it is worth.

    Not ``strict`` lets control characters stand in texts.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the answer has {len(text)} characters, more than {_MOST_CHARACTERS}")
    if text.count(",") > _MOST_VALUES or text.count("[") + text.count("{") > _MOST_CONTAINERS:
        raise ValueError(f"the answer has more than {_MOST_VALUES} values, or {_MOST_CONTAINERS} lists and objects")
    try:
        value: object = json.loads(text, strict=strict)
    except RecursionError:
        raise ValueError("the answer has lists or objects in each other without end") from None
    except MemoryError:
        raise ValueError("the answer does not fit into this machine's memory") from None
    return value
