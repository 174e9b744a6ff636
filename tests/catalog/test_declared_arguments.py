"""Arguments of queues in the catalog: what holds, what differs, what older versions make of it."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest
from test_catalog import A, B, applied, declare

from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.catalog.core import Catalog
from mirrorq.errors import PolicyError
from mirrorq.protocol.commands import (
    CatalogCommand,
    ClearPolicy,
    DeclareQueue,
    DeclareShards,
    DeclareShardsWithArguments,
    DeclareWithArguments,
    RegisterNode,
    SetLaterPolicy,
    SetPolicy,
)
from mirrorq.protocol.identities import MemberId
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


def declare_with(name: str = "orders", **given: Any) -> DeclareWithArguments:
    text = arguments_text({key.replace("_", "-"): value for key, value in given.items()})
    return DeclareWithArguments(name, True, False, False, "a", None, (A, B), text)


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
    made = DeclareShardsWithArguments("many", 2, True, "a", ((A,), (B,)), text)
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
    sharded = DeclareShardsWithArguments("many", 1, True, "a", ((A,),), text)
    refused = catalog.apply(7, sharded)
    assert "max-length=None, not 3" in refused.text


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"ha-mode":"all"}', '{"max-length":-1}', '{"overflow":"x"}', '{ }']
)
def test_arguments_that_are_none_make_no_queue(text: str) -> None:
    """A node that writes others is refused, and all nodes go on alike."""
    assert arguments_error(text)
    for command in (
        DeclareWithArguments("orders", True, False, False, "a", None, (A,), text),
        DeclareShardsWithArguments("orders", 1, True, "a", ((A,),), text),
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


# --- Older versions ---------------------------------------------------------------------------

OLD_COMMANDS: list[tuple[CatalogCommand, str]] = [
    (
        RegisterNode("a", 1, 1, "tcp://a:1", False),
        "920185a46e6f6465a161a573746f726501ab696e6361726e6174696f6e01a8656e64706f696e74a97463703a"
        "2f2f613a31a77769746e657373c2",
    ),
    (
        SetPolicy("p", to_text(parse("p", "^o", {"max-length": 9}))),
        "920682a46e616d65a170a474657874d9225b225e6f222c7b226d61782d6c656e677468223a397d2c302c22717565"
        "756573225d",
    ),
    (
        DeclareQueue("orders", True, False, False, "a", None, (A, B)),
        "920287a46e616d65a66f7264657273a764757261626c65c3a96578636c7573697665c2ab6175746f5f64656c65"
        "7465c2a86465636c61726572a161a56f776e6572c0a76d656d626572739283a46e6f6465a161a573746f726501"
        "ab696e6361726e6174696f6e0183a46e6f6465a162a573746f726502ab696e6361726e6174696f6e01",
    ),
    (
        DeclareShards("many", 2, True, "a", ((A,), (B,))),
        "921885a46e616d65a46d616e79a673686172647302a764757261626c65c3a86465636c61726572a161a76d656d"
        "62657273929183a46e6f6465a161a573746f726501ab696e6361726e6174696f6e019183a46e6f6465a162a573"
        "746f726502ab696e6361726e6174696f6e01",
    ),
]
"""As 7cfbddc writes them."""
OLD_SNAPSHOT = (
    "eNrFkd9O2zAUhwntXiTcFlEu6asgFrn2ITnCOc5sh6RC3DCtF5Mmtd0LrCNp+oe9Q5U+BW+Dm0poQ9METIgr+0g/Hf"
    "++zxPv64yZC9BmVHGZGgt6bwE5jxiFYEYlkoC8/Ysgt8GnFFIIUHwoSQkw4+EcSCQKyS4sT3pHR6x3vELiTBOzqMhb"
    "ogmMVUkCoi6IxTBlpZs1eFWGlsCYukiYsaN5oiRydDsn0+TeP/U/Kr9z5ccsP5RAoY383sl1p9vxmwrGP5vtLt+/rV"
    "hqVSBAgoV6LoBLpkFPWSVSzfoSNlsYx4WXUC8jZgKV2r7K658ovIWr5wiQwl27mdLCiShVRqDXy+YIJJ7DurBKilFx"
    "iZANS0gUj7wqhrjv0pMbt+pzsTXySPeHhAopMAPim9+C/V1w/+/B20hlP0oNGDqFIbgWTWBv2TChRDsoz7fJu8wBcU"
    "UmjZ3h/3HReupiFTMaHJiIadF9mZDxs4W8A2f7H5zHr+d8k/+smlYgxl8ewdyL+08Jii1Bqd1sJq32A13HsXc="
)
"""What 7cfbddc has after such commands: zlib, base64."""


@pytest.mark.parametrize(("command", "data"), OLD_COMMANDS)
def test_commands_without_arguments_have_the_bytes_of_older_versions(
    command: CatalogCommand, data: str
) -> None:
    assert decode_command(bytes.fromhex(data)) == command
    assert encode_command(command).hex() == data


def test_a_snapshot_of_an_older_version_is_read() -> None:
    catalog = Catalog.restore(zlib.decompress(base64.b64decode(OLD_SNAPSHOT)))
    assert [queue.arguments for queue in catalog.queues()] == ["", "", ""]
    assert [one.name for one in catalog.sharded_queues()] == ["many"]
    assert catalog.definition_of("orders").max_length == 9
    assert MemberId("a", 1, 1) == A


def test_what_older_versions_would_pass_over_is_another_command_and_another_snapshot() -> None:
    """They stop following the catalog there, and say so, as with any command that they do not
    know: a queue without its limits would be worse."""
    later = policy(consumer_timeout=5)
    as_later = SetLaterPolicy(later.name, later.text)
    sharded = DeclareShardsWithArguments("many", 1, True, "a", ((A,),), '{"expires":5}')
    for command, tag in ((declare_with(expires=5), 40), (sharded, 41), (as_later, 42)):
        data = encode_command(command)
        assert data[:3] == bytes((0x92, tag, 0x80 | len(command.__struct_fields__)))
        assert decode_command(data) == command
        catalog, result = applied(command)
        assert not result.error
        assert catalog.snapshot()[:2] == b"\x92\x02"
        assert Catalog.restore(catalog.snapshot()).snapshot() == catalog.snapshot()
    plain, _ = applied(declare(), policy(max_length=5))
    assert plain.snapshot()[:2] == b"\x92\x01"
