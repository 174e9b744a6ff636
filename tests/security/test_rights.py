"""The decision who may do what, by itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.errors import ConfigError
from mirrorq.security.roles import Key, Right, Role, refusal
from mirrorq.transport.curve import new_key_pair

PUBLIC = new_key_pair()[0]
NAMES = st.text("ab.*", max_size=8)


def client(**patterns: list[str]) -> Key:
    return Key("web", PUBLIC, "client", **patterns)


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "my-orders", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("*.eu", "orders.eu", True),
        ("*", "", True),
        ("*", "anything at all\n", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("ab*ba", "aba", False),
        ("a**b", "ab", True),
        ("o.ders", "orders", False),
        ("[a]", "a", False),
    ],
)
def test_a_pattern_is_the_whole_name_but_for_stars(pattern: str, name: str, is_match: bool) -> None:
    """No other character than * means anything but itself."""
    assert client(read=[pattern]).allows(Right.READ, name) is is_match


@given(pattern=NAMES.filter(bool), name=st.text("ab.", max_size=10))
def test_patterns_match_what_the_same_regular_expression_does(pattern: str, name: str) -> None:
    """Against re, with each piece quoted."""
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL)
    assert client(write=[pattern]).allows(Right.WRITE, name) is (expected is not None)


@given(
    granted=st.fixed_dictionaries(
        {right.value: st.lists(NAMES.filter(bool), max_size=3) for right in Right}
    ),
    right=st.sampled_from(list(Right)),
    name=st.text("ab.", max_size=6),
)
def test_a_client_may_what_one_pattern_of_that_right_allows(
    granted: dict[str, list[str]], right: Right, name: str
) -> None:
    """Patterns of another right give nothing; a refusal is told exactly when there is one."""
    key = client(**granted)
    only = client(**{right.value: granted[right.value]})
    assert key.allows(right, name) == only.allows(right, name)
    assert key.allows(right, name) == any(
        client(**{right.value: [pattern]}).allows(right, name) for pattern in granted[right.value]
    )
    assert bool(refusal(key, right, name)) is not key.allows(right, name)
    assert key.knows(name) == any(key.allows(each, name) for each in Right)


@pytest.mark.parametrize("role", ["peer", "admin"])
@pytest.mark.parametrize("right", list(Right))
def test_peers_and_admins_may_everything(role: str, right: Right) -> None:
    """And have no patterns, which could only mislead."""
    assert Key("x", PUBLIC, role).allows(right, "orders")
    with pytest.raises(ConfigError, match="only a client"):
        Key("x", PUBLIC, role, read=["*"])


def test_without_patterns_a_client_may_nothing() -> None:
    assert not client().knows("orders")


def test_a_refusal_names_the_key_the_right_and_the_queue() -> None:
    """What is missing can be told from it."""
    text = refusal(client(read=["a.*", "b"]), Right.READ, "orders")
    for part in ("'web'", "read", "'orders'", "a.*, b"):
        assert part in text


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"public_key": "short"}, "not a key"),
        ({"public_key": PUBLIC[:-1] + "~"}, "not a key"),
        ({"public_key": 7}, "not a key"),
        ({"role": "root"}, "root"),
        ({"role": None}, "unknown"),
        ({"read": "orders"}, "list of strings"),
        ({"read": [""]}, "pattern"),
        ({"write": [7]}, "pattern"),
        ({"configure": 7}, "list of strings"),
    ],
)
def test_what_is_wrong_with_a_key_is_told(given: dict[str, object], complaint: str) -> None:
    """As ConfigError, and a wrong key is not shown: it may be a secret one."""
    arguments = {"name": "web", "public_key": PUBLIC, "role": Role.CLIENT, **given}
    with pytest.raises(ConfigError, match=complaint) as caught:
        Key(**arguments)  # type: ignore[arg-type]
    if isinstance(given.get("public_key"), str):
        assert str(given["public_key"]) not in str(caught.value)
