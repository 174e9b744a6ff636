"""What a policy may say, which one is in force, and that the catalog keeps it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from attrs import fields_dict
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.errors import PolicyError
from mirrorq.protocol.commands import ClearPolicy, DeclareQueue, SetPolicy
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import DEFAULT, Definition, from_text, in_force, parse, to_text

WRONG: tuple[dict[Any, Any], ...] = (
    {},
    {"ha-mod": "all"},
    {1: 2},
    {"ha-mode": "some"},
    {"ha-mode": ["all"]},
    {"ha-mode": "exactly"},
    {"ha-mode": "exactly", "ha-params": "2"},
    {"ha-mode": "exactly", "ha-params": True},
    {"ha-mode": "exactly", "ha-params": 0},
    {"ha-mode": "exactly", "ha-params": ["a"]},
    {"ha-mode": "nodes", "ha-params": 2},
    {"ha-mode": "nodes", "ha-params": []},
    {"ha-mode": "nodes", "ha-params": ["a", "a"]},
    {"ha-mode": "nodes", "ha-params": ["a", 1]},
    {"ha-mode": "all", "ha-params": 2},
    {"ha-params": 2},
    {"max-length": -1},
    {"max-length": 1.5},
    {"max-length": 2**60},
    {"message-ttl": "1000"},
    {"expires": 0},
    {"overflow": "drop"},
    {"dead-letter-queue": ""},
    {"dead-letter-queue": 7},
    {"min-in-sync": 3, "ha-mode": "exactly", "ha-params": 2},
    {"single-active-consumer": 1},
)


@pytest.mark.parametrize("definition", WRONG, ids=str)
def test_wrong_definition_is_refused_with_its_values(definition: dict[Any, Any]) -> None:
    with pytest.raises(PolicyError, match="policy 'p': "):
        parse("p", "", definition)


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "", {"ha-mode": "all"}),
        (3, "", {"ha-mode": "all"}),
        ("p", None, {"ha-mode": "all"}),
        ("p", "(", {"ha-mode": "all"}),
        ("p", "a" * 256, {"ha-mode": "all"}),
        ("p", "", [("ha-mode", "all")]),
        ("p", "", {"ha-mode": "all"}, "1"),
        ("p", "", {"ha-mode": "all"}, True),
        ("p", "", {"ha-mode": "all"}, 2**40),
        ("p", "", {"ha-mode": "all"}, 0, "exchanges"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(PolicyError):
        parse(*arguments)


def test_what_was_given_is_told_back() -> None:
    given_ = {"ha-mode": "nodes", "ha-params": ["a", "b"], "max-length": 5}
    policy = parse("p", "^orders", given_, 3)
    assert policy.given() == given_
    assert policy.definition.ha_params == ("a", "b")
    assert policy.definition.overflow == DEFAULT.overflow


def test_highest_priority_then_first_name_is_in_force() -> None:
    policies = [
        parse("b", "orders", {"max-length": 1}, 1),
        parse("a", "orders", {"max-length": 2}, 1),
        parse("c", "", {"max-length": 3}),
        parse("d", "^x", {"max-length": 4}, 9),
    ]
    for order in (policies, policies[::-1]):
        assert in_force(order, "my orders") is policies[1]
        assert in_force(order, "other") is policies[2]
        assert in_force(order, "xa") is policies[3]
    assert in_force(policies[:2], "other") is None


@given(
    st.dictionaries(
        st.one_of(
            st.sampled_from(["ha-mode", "ha-params", "max-length", "overflow", "expires"]),
            st.text(max_size=5),
        ),
        st.one_of(st.none(), st.integers(), st.text(), st.lists(st.text(max_size=3))),
    )
)
def test_any_definition_is_parsed_or_refused(definition: dict[str, Any]) -> None:
    try:
        policy = parse("p", "", definition)
    except PolicyError:
        return
    assert policy.given() == definition
    assert from_text("p", to_text(policy)) == policy


@given(st.text(max_size=40))
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    catalog = Catalog()
    result = catalog.apply(1, SetPolicy("p", text))
    assert result.error == "PolicyError"
    assert catalog.policies() == ()


def _declare(catalog: Catalog, index: int, name: str) -> int:
    member = MemberId("a", 1, 1)
    command = DeclareQueue(name, True, False, False, "a", None, (member,))
    return catalog.apply(index, command).value


def test_catalog_keeps_policies_and_says_when_they_change() -> None:
    catalog = Catalog()
    _declare(catalog, 1, "orders")
    _declare(catalog, 2, "bills")
    policy = parse("p", "^orders$", {"ha-mode": "exactly", "ha-params": 2})
    command = decode_command(encode_command(SetPolicy("p", to_text(policy))))
    assert catalog.apply(3, command).redefines
    assert catalog.definition_of("orders") == policy.definition
    assert catalog.definition_of("bills") == DEFAULT
    restored = Catalog.restore(catalog.snapshot())
    assert restored.policies() == (policy,)
    assert restored.snapshot() == catalog.snapshot()
    weaker = parse("q", "", {"ha-mode": "all"}, -1)
    assert catalog.apply(4, SetPolicy("q", to_text(weaker))).redefines
    assert catalog.apply(5, ClearPolicy("p")).redefines
    assert not catalog.apply(6, ClearPolicy("p")).redefines
    assert catalog.apply(6, ClearPolicy("p")).error == ""


def test_the_page_has_a_row_for_each_key() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    rows = [row for row in rows if not row.startswith("x-death-")]
    assert sorted(rows) == sorted(name.replace("_", "-") for name in fields_dict(Definition))
