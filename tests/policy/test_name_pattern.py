"""Patterns are found where Python's `re` finds them, in time that grows with the name only."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.growth.work import work_of

from mirrorq.errors import PolicyError
from mirrorq.protocol.name_pattern import FOUND_MAX, STEPS_MAX, NamePattern, PatternError, is_found
from mirrorq.protocol.policy import parse

SLOW_FOR_OTHERS = (
    *(r"\w+_\w+_\w+$", "(a+)+$", "(a|a)*$", "(a?a?)*b", "(a*)*", "(?:(a){1,40})+"),
    *("a*a*a*a*a*b", "(a{0,8}){8}", "a?" * 60, "(.*)*x", "(|a|_)*$y"),
)
UNKNOWN = {
    r"(a)\1": "back-reference",
    "(?=a)": r"\(\?",
    "(?<!a)b": r"\(\?",
    "(?i)A": r"\[aA\]",
    "(?P<n>a)": r"\(\?",
    "a*+": "possessive",
    r"\pL": "escape",
    "a{1,600}": "more than 512 places",
    "((a{0}){200}){200}": "more than 512 places",
    "(){513}": "more than 512 places",
    "(" * 21 + ")" * 21: "20 groups",
}


def instructions(pattern: str, name: str) -> int:
    """How many lines it takes to look for a pattern for the first time."""
    ready = NamePattern(pattern)
    return work_of(lambda: ready.is_in(name)).count


@pytest.mark.parametrize("pattern", SLOW_FOR_OTHERS)
@pytest.mark.parametrize("character", ["a", "_"])
def test_a_name_of_twice_the_length_takes_twice_the_work(pattern: str, character: str) -> None:
    """With `re` the first takes 4 s for 255 characters, the second a year for 45."""
    parse("p", pattern, {"max-length": 1})
    short, long = (instructions(pattern, character * size + "-") for size in (120, 240))
    assert long <= 2.2 * short
    assert long < 2_000_000


TEXTS = st.text("abAB_- .é0\u0663$x", max_size=12)
CHARACTERS = st.sampled_from(
    ["a", "b", "_", "-", ".", r"\.", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", "é", "x", "{",
     "[ab]", "[^a]", "[a-z0-9]", r"[\w-]", r"[^\d_]", "[]a]", "[a-]", "}", r"\-"]
)  # fmt: skip
EDGES = st.sampled_from(["^", "$", r"\b", r"\B", r"\A", r"\Z", ""])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "*?", "{2}", "{1,3}", "{,2}", "{2,}", "{,}"])


def grown(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(smaller, REPEATS).map(lambda parts: f"({parts[0]}){parts[1]}"),
        st.lists(smaller, min_size=1, max_size=3).map("".join),
        st.lists(smaller, min_size=1, max_size=3).map("|".join),
    )


PATTERNS = st.recursive(
    st.one_of(st.tuples(CHARACTERS, REPEATS).map("".join), EDGES), grown, max_leaves=5
)


@given(PATTERNS, st.lists(TEXTS.filter(bool), min_size=1, max_size=4))
@example("a{1,3}?b", ["aab"])
@example(r"(^|\.)x$", ["a.x", "x", "ax"])
@example("{a}{,b}a{", ["{a}{,b}a{"])
def test_a_pattern_is_found_where_python_finds_it(pattern: str, names: list[str]) -> None:
    ready = NamePattern(pattern)
    for name in (*names, *names):  # The second time from memory.
        assert ready.is_in(name) == (re.search(pattern, name) is not None), (pattern, name)


@pytest.mark.filterwarnings("ignore:Possible")
@given(st.text("ab(|)[]{}^$*+?\\.-,12w", max_size=10))
def test_text_that_is_no_pattern_is_refused_as_python_refuses_it(text: str) -> None:
    """What `re` refuses is refused. What is known here means the same."""
    try:
        expected = re.compile(text)
    except (re.error, OverflowError):
        with pytest.raises(PolicyError, match="regular expression"):
            parse("p", text, {"max-length": 1})
        return
    try:
        NamePattern(text)
    except PatternError as error:
        why = str(error)
    else:
        why = ""
    if why:
        assert re.search("is not known here|more than", why), (text, why)
        return
    for name in ("a", "ab", "b1", "w{1}", "-,^$"):
        assert is_found(text, name) == (expected.search(name) is not None), (text, name)


@pytest.mark.parametrize(("pattern", "says"), UNKNOWN.items())
def test_what_is_not_known_is_refused_with_what_would_do(pattern: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says) as raised:
        parse("some", pattern, {"max-length": 1})
    assert repr(pattern) in str(raised.value)
    assert "'some'" in str(raised.value)


def test_letters_and_digits_are_those_of_one_unicode_on_every_node() -> None:
    r"""U+1E900, a letter since Unicode 9, is one to each Python that runs this, and not to `\w`."""
    assert re.search(r"\w", "\U0001e900")
    assert not is_found(r"\w", "\U0001e900")
    assert is_found(r"^\w+$", "größe_Ж数٣")


def test_what_is_remembered_has_a_bound() -> None:
    """Names of ever new characters do not fill a node's memory."""
    ready = NamePattern("[a-z]+-x$")
    for code in range(0x4E00, 0x4E00 + 3 * STEPS_MAX):
        assert not ready.is_in(chr(code))
    assert ready._steps <= STEPS_MAX
    assert len(ready._first.nexts) <= STEPS_MAX
    assert is_found.cache_info().maxsize == FOUND_MAX
