"""Arguments of queues in the catalog: what holds, what differs, what older versions make of it."""

from __future__ import annotations

from typing import Any

import pytest
from test_catalog import A, B, applied, declare

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.errors import PolicyError
from mirrorq.protocol.commands import (
    ClearPolicy,
    DeclareQueue,
    DeclareShards,
    SetPolicy,
)
from mirrorq.protocol.policy import (
    ARGUMENTS,
    Definition,
    arguments_error,
    arguments_of,
    arguments_text,
    definition_with,
    parse,
    to_text,
)
from mirrorq.protocol.shard_names import shard_name

OTHER = {
    "consumer-timeout": 1000,
    "dead-letter-queue": "dead",
    "delivery-limit": 3,
    "expires": 5000,
    "max-length": 10,
    "max-length-bytes": 1000,
    "message-ttl": 700,
    "overflow": "drop-head",
}


def declare_with(name: str = "orders", **given: Any) -> DeclareQueue:
    text = arguments_text({key.replace("_", "-"): value for key, value in given.items()})
    return DeclareQueue(name, True, False, False, "a", None, (A, B), text)


def policy(**given: Any) -> SetPolicy:
    definition = {key.replace("_", "-"): value for key, value in given.items()}
    return SetPolicy("p", to_text(parse("p", "", definition)))


# --- What holds -------------------------------------------------------------------------------


def test_a_queue_goes_by_its_arguments() -> None:
    """Each of them, and nothing else of a policy's words; they come through a snapshot."""
    catalog, result = applied(declare_with(**{k.replace("-", "_"): v for k, v in OTHER.items()}))
    assert not result.error
    for known in (catalog, Catalog.restore(catalog.snapshot())):
        found = known.definition_of("orders")
        assert found == Definition(**{key.replace("-", "_"): OTHER[key] for key in ARGUMENTS})  # type: ignore[arg-type]
        assert known.definition_of("others") == Definition()
    queue = catalog.queue_named("orders")
    assert queue is not None
    assert queue.has_outbox, "what ends goes to its dead-letter-queue from the start"
    assert set(OTHER) == set(ARGUMENTS)


@pytest.mark.parametrize(
    ("argument", "said", "holds"),
    [
        ({"max-length": 10}, {"max-length": 7}, 7),
        ({"max-length": 10}, {"max-length": 70}, 10),
        ({"expires": 10}, {"expires": 70}, 10),
        ({"delivery-limit": 4}, {"delivery-limit": 0}, 0),
        ({"consumer-timeout": 10}, {"consumer-timeout": 7}, 7),
        ({"consumer-timeout": 0}, {"consumer-timeout": 7}, 7),
        ({"consumer-timeout": 10}, {"consumer-timeout": 0}, 10),
        ({"overflow": "drop-head"}, {"overflow": "block"}, "block"),
        ({"overflow": "drop-head"}, {"max-length": 5}, "drop-head"),
        ({"dead-letter-queue": "mine"}, {"dead-letter-queue": "theirs"}, "theirs"),
    ],
)
def test_where_both_speak(argument: dict[str, Any], said: dict[str, Any], holds: object) -> None:
    """The lesser number, and of what is no number what the policy says."""
    (key,) = argument
    found = definition_with(parse("p", "", said), arguments_text(argument))
    assert getattr(found, key.replace("-", "_")) == holds


def test_a_policy_comes_and_goes_over_arguments() -> None:
    catalog, _ = applied(declare_with(max_length=10), policy(max_length=5, message_ttl=9))
    found = catalog.definition_of("orders")
    assert (found.max_length, found.message_ttl) == (5, 9)
    catalog.apply(3, ClearPolicy("p"))
    found = catalog.definition_of("orders")
    assert (found.max_length, found.message_ttl) == (10, None)


def test_shards_have_the_arguments_of_their_queue() -> None:
    """But that none of them goes alone because nobody uses it; a lost one that is made anew has
    them, whoever declares."""
    text = arguments_text({"max-length": 10, "expires": 5})
    made = DeclareShards("many", 2, True, "a", ((A,), (B,)), text)
    catalog, result = applied(made)
    assert not result.error
    for shard in range(2):
        found = catalog.definition_of(shard_name("many", shard))
        assert (found.max_length, found.expires) == (10, None)
    ring = catalog.queue_named(shard_name("many", 1))
    assert ring is not None
    catalog._remove(ring.id)
    assert not catalog.apply(2, DeclareShards("many", 2, True, "a", ((A,), (B,)))).error
    assert catalog.definition_of(shard_name("many", 1)).max_length == 10


# --- Declared again ---------------------------------------------------------------------------


def test_who_names_an_argument_names_the_one_that_is() -> None:
    """What is not named is taken as it is; the refusal says what differs, and only that."""
    catalog, _ = applied(declare_with(max_length=10, overflow="drop-head"))
    assert catalog.apply(2, declare()).value == 1
    assert catalog.apply(3, declare_with(overflow="drop-head")).value == 1
    assert catalog.apply(4, declare_with(max_length=10, overflow="drop-head")).value == 1
    refused = catalog.apply(5, declare_with(max_length=11, overflow="drop-head", expires=9))
    assert refused.error == "PreconditionFailed"
    assert "expires=None, not 9, max-length=10, not 11" in refused.text
    assert "overflow" not in refused.text
    text = arguments_text({"max-length": 3})
    catalog.apply(6, DeclareShards("many", 1, True, "a", ((A,),)))
    sharded = DeclareShards("many", 1, True, "a", ((A,),), text)
    refused = catalog.apply(7, sharded)
    assert "max-length=None, not 3" in refused.text


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"ha-mode":"all"}', '{"max-length":-1}', '{"overflow":"x"}', "{ }"]
)
def test_arguments_that_are_none_make_no_queue(text: str) -> None:
    """A node that writes others is refused, and all nodes go on alike."""
    assert arguments_error(text)
    for command in (
        DeclareQueue("orders", True, False, False, "a", None, (A,), text),
        DeclareShards("orders", 1, True, "a", ((A,),), text),
    ):
        catalog, result = applied(command)
        assert result.error
        assert catalog.queues() == ()


def test_arguments_are_checked_where_they_are_given() -> None:
    assert arguments_text({}) == ""
    assert arguments_of("") == {}
    assert arguments_text({"overflow": "block", "expires": 5}) == '{"expires":5,"overflow":"block"}'
    for wrong in ({"ha-mode": "all"}, {"expires": 0}, {"overflow": "no"}, {"max-length": True}):
        with pytest.raises(PolicyError):
            arguments_text(wrong)
