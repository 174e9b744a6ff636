"""What a queue's declaration must be, before anything is asked of the catalog."""

from __future__ import annotations

__all__ = ["NAME_CHARS_MAX", "declaration_error"]

NAME_CHARS_MAX = 255
"""Characters of a queue's name."""


def declaration_error(name: object, exclusive: object, auto_delete: object) -> str:
    """Return what is wrong with a declaration before it is proposed, "" when nothing is."""
    if not isinstance(name, str):
        return f"a queue's name is a string, not {name!r}"
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return f"a queue's name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
    try:
        name.encode()
    except UnicodeEncodeError as error:
        return f"the queue's name {name!r} cannot be written as UTF-8: {error.reason}"
    for word, value in (("exclusive", exclusive), ("auto_delete", auto_delete)):
        if not isinstance(value, bool):
            return f"{word} is True or False, not {value!r}"
    return ""
