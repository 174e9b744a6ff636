"""Whether a pattern may take for ever on some name: told from its form, before it is kept.

Python's matcher tries every way of dividing a name among the repeats of a pattern. Where one
repeat stands in another there are exponentially many: `(a+)+$` takes two seconds for a name of 22
letters and a year for one of 45. A policy's pattern is looked for on each node's own thread
whenever the catalog changes, and again after each restart, so one such pattern would stop the
cluster for good. What is refused here can be written otherwise: `[ab]*` for `(a|b)*`.
"""

from __future__ import annotations

from collections.abc import Iterator
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

__all__ = ["WAYS_MAX", "cost_error"]

NAME_CHARS = 255
"""Longest name that a pattern meets."""
WAYS_MAX = NAME_CHARS**3
"""Ways of dividing the longest name that are allowed: three repeats such as `.*`. The worst name
of 255 characters then takes about two seconds, one of 40 takes 0.03; usual ones microseconds."""

_REPEATS = (
    _constants.MAX_REPEAT,
    _constants.MIN_REPEAT,
    _constants.POSSESSIVE_REPEAT,
)


def cost_error(pattern: str) -> str:
    """Return what makes a pattern too dear, "" when nothing does.

    Raises:
        re.error: it is no regular expression.
    """
    ways = _ways(_parser.parse(pattern))
    if ways is None:
        return (
            "has a repeat or an alternative within a repeat, which can take for ever on some "
            "names: write [ab]* for (a|b)*, a+ for (a+)+"
        )
    if ways > WAYS_MAX:
        return (
            "has more repeats such as *, + and ? than can be tried in time, which can take for "
            "ever on some names: use at most three of * and +"
        )
    return ""


def _ways(parsed: Any) -> int | None:
    """In how many ways the matcher could go on, at most; None when it has no bound."""
    ways = 1
    for kind, argument in parsed:
        within = 1
        for part in _parts(argument):
            found = _ways(part)
            if found is None:
                return None
            within *= found
        if kind in _REPEATS:
            least, most = min(argument[0], NAME_CHARS), min(argument[1], NAME_CHARS)
            if most > 1 and within > 1:
                return None
            within *= most - least + 1
        elif kind is _constants.BRANCH:
            within *= len(argument[1])
        elif kind is _constants.GROUPREF:
            within *= NAME_CHARS
        ways *= within
    return ways


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns within an argument of the parser's tree."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for item in argument:
            yield from _parts(item)
