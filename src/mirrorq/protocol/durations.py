"""Durations as texts: a number and its unit, as `"30s"` or `"1.5h"`."""

from __future__ import annotations

import re

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Unit -> milliseconds."""
_TEXT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(ms|s|m|h|d)")


def milliseconds_in(text: str) -> float | None:
    """Return the milliseconds of a text, None if the text is no duration."""
    found = _TEXT.fullmatch(text)
    return None if found is None else float(found[1]) * UNITS_MS[found[2]]
