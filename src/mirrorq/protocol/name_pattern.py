r"""Search of patterns in names, in time linear in the length of the name.

Python's matcher tries each way of dividing a name among the repeats of a pattern, which takes
seconds or years for some names. Each node searches patterns on its own thread, whenever the catalog
changes and again after each restart: a slow pattern would stop the cluster for good. Here all ways
are followed at once (Thompson, "Regular expression search algorithm", CACM 11/6, 1968): after each
character there is one list of places in the pattern. The successors of a list are remembered, which
makes a deterministic automaton for the names seen.

The language is the part of Python's `re` for names: literals, `.`, classes, `\w \d \s` and their
opposites, `^ $ \A \Z \b \B`, `* + ? {m,n}` (lazy too), `|` and groups. Back-references,
look-around, possessive repeats and flags are refused. `\w` and `\d` go by Unicode 3.2, which each
Python has beside its own, so nodes with different versions of Python agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple
from unicodedata import ucd_3_2_0 as unicode

PLACES_MAX = 512
"""Limit of places in a pattern, its counted repeats written out. A character costs at most one look
at each place."""
DEPTH_MAX = 20
"""Limit of nested groups: groups are read by recursion."""
STEPS_MAX = 1024
"""Limit of remembered steps of a pattern: some 100 bytes each."""
FOUND_MAX = 16_384
"""Answers remembered, of all patterns together."""

KNOWN = (
    r"literals, ., classes such as [a-z0-9], \w \d \s \W \D \S, ^ $ \A \Z \b \B, * + ? {m,n}, | "
    "and groups"
)

_Test = Callable[[str], bool]


class PatternError(Exception):
    """The text is no pattern, or a pattern with unsupported syntax."""


# --- What a pattern is read as --------------------------------------------------------------


class _Character(NamedTuple):
    test: _Test


class _Anchor(NamedTuple):
    kind: str
    """A (begin), Z (end), b or B (an edge of a word, or no edge)."""


class _Sequence(NamedTuple):
    parts: tuple[_Part, ...]


class _Choice(NamedTuple):
    options: tuple[_Part, ...]


class _Repeat(NamedTuple):
    part: _Part
    least: int
    most: int | None
    """None: any number."""


_Part = _Character | _Anchor | _Sequence | _Choice | _Repeat


def _is_word(character: str) -> bool:
    return character == "_" or unicode.category(character)[0] in "LN"


def _is_digit(character: str) -> bool:
    return unicode.category(character) == "Nd"


def _is_space(character: str) -> bool:
    category = unicode.category(character)
    return category[0] == "Z" or character in "\t\n\r\f\v\x1c\x1d\x1e\x1f\x85"


def _not(test: _Test) -> _Test:
    return lambda character: not test(character)


_KINDS: dict[str, _Test] = {"w": _is_word, "d": _is_digit, "s": _is_space}
_KINDS |= {kind.upper(): _not(test) for kind, test in _KINDS.items()}
_ANCHORS = {"^": "A", "$": "Z"}


def _not_newline(character: str) -> bool:
    return character != "\n"


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> _Part:
        part = self._choice(0)
        if self._at < len(self._text):
            raise self._wrong("a ) closes no group")
        return part

    def _wrong(self, why: str) -> PatternError:
        return PatternError(f"{why} at position {self._at}")

    def _unknown(self, what: str, instead: str) -> PatternError:
        return self._wrong(f"{what} is not known here: {instead}. Known are {KNOWN}")

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _next(self, missing: str) -> str:
        if self._at == len(self._text):
            raise self._wrong(missing)
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self, depth: int) -> _Part:
        options = [self._sequence(depth)]
        while self._takes("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(depth))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, depth: int) -> _Part:
        if self._counts() is not None:
            raise self._wrong("nothing to repeat before this place")
        part = self._one(depth)
        counts = self._counts()
        if counts is None:
            return part
        if isinstance(part, _Anchor):
            raise self._wrong("an anchor is repeated")
        self._takes("?")  # Lazy: matches the same names.
        if self._takes("+"):
            raise self._unknown("a possessive repeat", "leave the last + out")
        if self._counts() is not None:
            raise self._wrong("a repeat is repeated: put a group around the first one")
        return _Repeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        """Return the counts of a repeat here, and pass it; None without a repeat."""
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._takes(sign):
                return counts
        end = self._text.find("}", self._at)
        if not self._text.startswith("{", self._at) or end < self._at + 2:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not (low + high + "0").isdecimal() or not (low + high).isascii():
            return None
        self._at = end + 1
        least = int(low or 0)
        most = least if not comma else int(high) if high else None
        if most is not None and most < least:
            raise self._wrong(f"a repeat of at least {least} and at most {most}")
        return least, most

    def _one(self, depth: int) -> _Part:
        character = self._next("nothing")
        if character == "(":
            return self._group(depth)
        if character == "[":
            return _Character(self._class())
        if character == "\\":
            return self._escape()
        if character == ".":
            return _Character(_not_newline)
        if character in _ANCHORS:
            return _Anchor(_ANCHORS[character])
        return _Character(character.__eq__)

    def _group(self, depth: int) -> _Part:
        if depth == DEPTH_MAX:
            raise self._wrong(f"more than {DEPTH_MAX} groups stand in each other")
        if self._takes("?") and not self._takes(":"):
            raise self._unknown(
                "a group that begins with (?",
                "write (...) or (?:...), [aA] for a flag that ignores case",
            )
        part = self._choice(depth + 1)
        if not self._takes(")"):
            raise self._wrong("a group is not closed: a ) is missing")
        # In a separate sequence: an anchor in a group can be repeated.
        return _Sequence((part,))

    def _escape(self) -> _Part:
        character = self._next("a \\ is the last character")
        if character in "AZbB":
            return _Anchor(character)
        if character in _KINDS:
            return _Character(_KINDS[character])
        return _Character(self._literal(character).__eq__)

    def _literal(self, character: str) -> str:
        """Return the character after a backslash; raise if the escape is no literal."""
        if character.isascii() and character.isalnum():
            what = "back-reference" if character.isdecimal() else "escape"
            raise self._unknown(
                f"the {what} \\{character}", "write the characters themselves, \\\\ for a backslash"
            )
        return character

    def _class(self) -> _Test:
        is_negated = self._takes("^")
        tests = [self._class_item()]
        while not self._takes("]"):
            tests.append(self._class_item())
        return _not(_any_of(tests)) if is_negated else _any_of(tests)

    def _class_item(self) -> _Test:
        low = self._class_character()
        if not self._text.startswith("-", self._at) or self._text.startswith("-]", self._at):
            return low.__eq__ if isinstance(low, str) else low
        self._takes("-")
        high = self._class_character()
        if not isinstance(low, str) or not isinstance(high, str) or high < low:
            raise self._wrong("a range of characters that has no order")
        return _within(low, high)

    def _class_character(self) -> str | _Test:
        missing = "a class is not closed: a ] is missing"
        character = self._next(missing)
        if character != "\\":
            return character
        character = self._next(missing)
        return _KINDS[character] if character in _KINDS else self._literal(character)


def _any_of(tests: list[_Test]) -> _Test:
    return lambda character: any(test(character) for test in tests)


def _within(low: str, high: str) -> _Test:
    return lambda character: low <= character <= high


# --- What a pattern is looked for with ------------------------------------------------------


class _Place(NamedTuple):
    """A place in a pattern."""

    test: _Test | None = None
    """Test of the next character, to go on from here; None: go on without a character."""
    anchor: str = ""
    """Condition to go on from here; "": none."""
    nexts: tuple[int, ...] = ()


_END = 0
"""The place at which the pattern was found."""


class _Places:
    """Writes a pattern as places, from its end."""

    def __init__(self) -> None:
        self.all: list[_Place] = [_Place()]

    def _add(self, place: _Place) -> int:
        if len(self.all) == PLACES_MAX:
            raise PatternError(
                f"its repeats written out take more than {PLACES_MAX} places: write * or + for "
                "a count, or lower the count"
            )
        self.all.append(place)
        return len(self.all) - 1

    def before(self, part: _Part, after: int) -> int:
        """Add a part before the place `after`; return the place of its begin."""
        match part:
            case _Character(test):
                return self._add(_Place(test, nexts=(after,)))
            case _Anchor(kind):
                return self._add(_Place(anchor=kind, nexts=(after,)))
            case _Sequence(parts):
                for one in reversed(parts):
                    after = self.before(one, after)
                return after
            case _Choice(options):
                begins = tuple(self.before(one, after) for one in options)
                return self._add(_Place(nexts=begins))
            case _Repeat():
                return self._before_repeat(part, after)

    def _before_repeat(self, repeat: _Repeat, after: int) -> int:
        begin = after
        if repeat.most is None:
            begin = self._add(_Place())
            self.all[begin] = _Place(nexts=(self.before(repeat.part, begin), after))
        else:
            for _ in range(repeat.most - repeat.least):
                begin = self._add(_Place(nexts=(self.before(repeat.part, begin), after)))
        for _ in range(repeat.least):
            # An extra place bounds the count where the part has no place.
            begin = self._add(_Place(nexts=(self.before(repeat.part, begin),)))
        return begin


class _Point:
    """State of a search: the same for all names which lead here."""

    __slots__ = ("before", "nexts", "waiting")

    def __init__(self, waiting: tuple[int, ...], before: str) -> None:
        self.waiting = waiting
        """Places reached by the last character."""
        self.before = before
        """Kind of the last character: w (a word's), W (another), "" at the begin."""
        self.nexts: dict[str, _Point] = {}
        """Next points by character, "" for the end of the name."""


_FOUND = _Point((), "")
_NOT_FOUND = _Point((), "")


class NamePattern:
    """A pattern, ready for searches in names.

    Raises:
        PatternError: the text is no pattern.
    """

    def __init__(self, text: str) -> None:
        places = _Places()
        self._begin = places.before(_Reader(text).read(), _END)
        self._places = tuple(places.all)
        self._points: dict[tuple[tuple[int, ...], str], _Point] = {}
        self._first = _Point((), "")
        self._steps = 0

    def is_in(self, name: str) -> bool:
        """Return true if the pattern is found anywhere in the name."""
        point = self._first
        for character in (*name, ""):
            point = point.nexts.get(character) or self._step(point, character)
            if point is _FOUND:
                return True
        return False

    def _step(self, point: _Point, character: str) -> _Point:
        """Find, and remember, the successor of a point."""
        if self._steps >= STEPS_MAX:
            self._steps = 0
            self._points.clear()
            self._first = _Point((), "")
        self._steps += 1
        found = point.nexts[character] = self._next_point(point, character)
        return found

    def _next_point(self, point: _Point, character: str) -> _Point:
        kind = "" if not character else "w" if _is_word(character) else "W"
        reached: dict[int, None] = {}
        for index in self._reachable(point, kind):
            if index == _END:
                return _FOUND
            place = self._places[index]
            if character and place.test is not None and place.test(character):
                reached[place.nexts[0]] = None
        if not character:
            return _NOT_FOUND
        waiting = tuple(sorted(reached))
        return self._points.setdefault((waiting, kind), _Point(waiting, kind))

    def _reachable(self, point: _Point, after: str) -> Iterator[int]:
        """Give the places reached before the next character, each once."""
        is_edge = (point.before == "w") != (after == "w")
        holds = {"": True, "A": not point.before, "Z": not after, "b": is_edge, "B": not is_edge}
        open_places = [*point.waiting, self._begin]
        seen = bytearray(len(self._places))
        while open_places:
            index = open_places.pop()
            if seen[index]:
                continue
            seen[index] = 1
            yield index
            place = self._places[index]
            if place.test is None and holds[place.anchor]:
                open_places.extend(place.nexts)


@lru_cache(maxsize=512)
def compiled(text: str) -> NamePattern:
    """Return the compiled pattern of a text.

    Raises:
        PatternError: the text is no pattern.
    """
    return NamePattern(text)


@lru_cache(maxsize=FOUND_MAX)
def is_found(pattern: str, name: str) -> bool:
    """Return true if a pattern is found anywhere in a name; remembered."""
    return compiled(pattern).is_in(name)
