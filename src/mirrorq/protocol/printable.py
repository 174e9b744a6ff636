"""Characters that no name has, as a terminal or a log would obey them instead of showing them.

Control characters (C0, DEL, C1), separators of lines and paragraphs, and those that change the
direction of writing: with them a name moves the cursor, forges a line, or looks like another one.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def unprintable(what: str, text: str) -> str:
    """Return why this can be no name, "" when it can."""
    found = _UNPRINTABLE.search(text)
    if found is None:
        return ""
    return (
        f"{what} {text!r} has the character U+{ord(found[0]):04X}, which a terminal does not show "
        "but obeys: leave it out"
    )


def escaped(text: str, kept: str = "") -> str:
    """The text with such characters written as Python writes them, as in `\\x1b`.

    Args:
        kept: those of them that stay.
    """
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: _written(found[0], kept), text)


def _written(character: str, kept: str) -> str:
    return character if character in kept else character.encode("unicode_escape").decode()
