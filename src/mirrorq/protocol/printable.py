"""Characters forbidden in names, as a terminal or a log would obey instead of show the character.

Control characters (C0, DEL, C1), separators of lines and paragraphs, and changes of the writing
direction: with such a character a name moves the cursor, forges a line, or imitates another name.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def unprintable(what: str, text: str) -> str:
    """Return why the text can be no name, "" if it can."""
    found = _UNPRINTABLE.search(text)
    if found is None:
        return ""
    return (
        f"{what} {text!r} has the character U+{ord(found[0]):04X}, which a terminal does not show "
        "but obeys: leave it out"
    )


def escaped(text: str, kept: str = "") -> str:
    r"""The text with forbidden characters in Python's escapes, as in `\x1b`.

    Args:
        kept: forbidden characters to leave unchanged.
    """
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(lambda found: _written(found[0], kept), text)


def _written(character: str, kept: str) -> str:
    return character if character in kept else character.encode("unicode_escape").decode()
