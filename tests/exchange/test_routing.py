"""Which queues a message reaches: AMQP 0-9-1's words, beside an oracle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.errors import ConfigError
from mirrorq.protocol.commands import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
)
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.routing import Binding, ExchangeRecord, Routes, arguments_text

WORDS = st.lists(st.sampled_from(["a", "b", "", "usd"]), min_size=1, max_size=6)
PARTS = st.lists(st.sampled_from(["a", "b", "", "usd", "*", "#"]), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("pattern", "key", "reached"),
    [
        ("stock.usd.*", "stock.usd.ibm", True),
        ("stock.usd.*", "stock.usd", False),
        ("stock.usd.*", "stock.usd.ibm.x", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("*", "", True),
        ("*", "a.b", False),
        ("*.stock.#", "usd.stock", True),
        ("*.stock.#", "eur.stock.db", True),
        ("*.stock.#", "stock.nasdaq", False),
        ("#.b.#", "a.a.b", True),
        ("#.#", "", True),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.x.y.b", True),
        ("a.#.b", "a.x.y", False),
    ],
)
def test_topic_matching(pattern: str, key: str, reached: bool) -> None:
    assert _is_reached(pattern, key) is reached


def _oracle(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_oracle(pattern[1:], words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _oracle(pattern[1:], words[1:])


@given(PARTS, WORDS)
def test_topic_matching_is_as_the_words_say(pattern: list[str], words: list[str]) -> None:
    assert _is_reached(".".join(pattern), ".".join(words)) is _oracle(pattern, words)


def test_a_long_pattern_of_hashes_is_quick() -> None:
    assert not _is_reached(".".join(["#"] * 100 + ["x"]), ".".join(["a"] * 100))


def _routes(kind: str, *bindings: tuple[int, str, dict[str, Any]]) -> Routes:
    made = tuple(Binding(q, key, arguments_text(given)) for q, key, given in bindings)
    return Routes(ExchangeRecord("e", kind, bindings=made))


def _is_reached(pattern: str, key: str) -> bool:
    return bool(_routes("topic", (1, pattern, {})).route(key, {}))


def test_each_kind_of_exchange() -> None:
    bound = ((1, "a", {}), (2, "b", {}), (1, "b", {}), (3, "a.*", {}))
    assert _routes("direct", *bound).route("b", {}) == (2, 1)
    assert _routes("direct", *bound).route("a.*", {}) == (3,)
    assert _routes("fanout", *bound).route("nothing", {}) == (1, 2, 3)
    topic = _routes("topic", *bound, (4, "#", {}))
    for _ in range(2):  # remembered the second time
        assert topic.route("a.x", {}) == (3, 4)
        assert topic.route("b", {}) == (2, 1, 4)


def test_headers() -> None:
    routes = _routes(
        "headers",
        (1, "", {"kind": "order", "rank": 1}),
        (2, "", {"x-match": "any", "kind": "order", "rank": 2}),
        (3, "", {"kind": None}),
        (4, "", {}),
        (5, "", {"x-match": "any"}),
        (6, "", {"urgent": True}),
    )
    assert routes.route("", {"kind": "order", "rank": 1}) == (1, 2, 3, 4)
    assert routes.route("", {"rank": 2}) == (2, 4)
    assert routes.route("", {"kind": "bill"}) == (3, 4)
    assert routes.route("", {}) == (4,)
    assert routes.route("", {"urgent": 1}) == (4,), "1 is not True"
    assert routes.route("", {"urgent": True}) == (4, 6)


@pytest.mark.parametrize(
    "wrong", [{"x-match": "some"}, {1: 2}, {"a": b"x"}, {"a": ["x"]}, {"a": "x" * 5000}], ids=str
)
def test_wrong_arguments_are_refused(wrong: dict[Any, Any]) -> None:
    with pytest.raises(ConfigError):
        arguments_text(wrong)


def test_equal_arguments_are_one_text() -> None:
    assert arguments_text({"b": 1, "a": "x"}) == arguments_text({"a": "x", "b": 1})
    assert arguments_text(None) == arguments_text({}) == ""


# --- In the catalog ---------------------------------------------------------------------


class Applied:
    """A catalog with a queue "orders" of id 1, and commands that went through their bytes."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.index = 0
        member = MemberId("a", 1, 1)
        self.do(DeclareQueue("orders", True, False, False, "a", None, (member,)))

    def do(self, command: Any) -> Any:
        self.index += 1
        return self.catalog.apply(self.index, decode_command(encode_command(command)))


def test_exchanges_and_bindings_are_kept() -> None:
    applied = Applied()
    assert applied.do(DeclareExchange("e", "topic", "rest")).value == 2
    assert applied.do(DeclareExchange("e", "topic", "rest")).value == 2, "as it was"
    assert applied.do(DeclareExchange("e", "fanout")).error == "PreconditionFailed"
    assert applied.do(DeclareExchange("f", "fan")).error == "ConfigError"
    assert applied.do(DeclareExchange("", "fanout")).error == "ConfigError"
    assert applied.do(Bind("no", "orders", "a", "")).error == "QueueNotFound"
    assert applied.do(Bind("e", "no", "a", "")).error == "QueueNotFound"
    assert applied.do(Bind("e", "orders", "k" * 300, "")).error == "PreconditionFailed"
    version = applied.do(Bind("e", "orders", "a", "")).value
    assert version == applied.index
    assert applied.do(Bind("e", "orders", "a", "")).value == version, "bound already"
    applied.do(Bind("e", "orders", "b", ""))
    restored = Catalog.restore(applied.catalog.snapshot())
    assert restored.exchange("e") == applied.catalog.exchange("e")
    assert restored.snapshot() == applied.catalog.snapshot()
    assert applied.do(DeleteExchange("e", True)).error == "PreconditionFailed"
    applied.do(Unbind("e", "orders", "a", ""))
    applied.do(Unbind("e", "orders", "a", ""))
    record = applied.catalog.exchange("e")
    assert record is not None
    assert record.bindings == (Binding(1, "b", ""),)
    applied.do(DeleteQueue(1))
    record = applied.catalog.exchange("e")
    assert record is not None
    assert record.bindings == ()
    assert applied.do(DeleteExchange("e", True)).error == ""
    assert applied.do(DeleteExchange("e")).error == "QueueNotFound"
    assert applied.catalog.exchanges() == ()


@given(st.text(max_size=20))
def test_any_arguments_in_a_binding_are_harmless(text: str) -> None:
    routes = Routes(ExchangeRecord("e", "headers", bindings=(Binding(1, "", text),)))
    assert routes.route("", {"a": 1}) in ((), (1,))
