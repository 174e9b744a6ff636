"""Which joining members fetch what they lack: by policy, and by what they were told."""

from __future__ import annotations

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.protocol.commands import (
    AcknowledgeLosses,
    CatalogCommand,
    ChangeView,
    DeclareQueue,
    SetPolicy,
    Synchronise,
)
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import Member

A, B, C = (MemberId(name, number, 1) for number, name in enumerate("abc", 1))
DECLARE = DeclareQueue("orders", True, False, False, "a", None, (A, B, C))
ON, OFF = Synchronise("orders", True), Synchronise("orders", False)


def policy(mode: str) -> SetPolicy:
    return SetPolicy("p", to_text(parse("p", "", {"ha-sync-mode": mode})))


def view(replaces: int, in_sync: str, joining: str = "") -> ChangeView:
    members = {"a": A, "b": B, "c": C, "B": MemberId("b", B.store, 2)}
    row = [Member(members[n], True) for n in in_sync]
    row += [Member(members[n], False) for n in joining]
    return ChangeView(1, replaces, tuple(row))


def after(*commands: CatalogCommand) -> str:
    """Names of the members that synchronise after these commands, on a fresh queue of a, b, c
    where a alone is in sync; the same after a snapshot, and with each command as bytes."""
    catalog = Catalog()
    begin = (DECLARE, view(1, "a", "bc"))
    for index, command in enumerate((*begin, *commands), 1):
        catalog.apply(index, decode_command(encode_command(command)))
    again = Catalog.restore(catalog.snapshot())
    assert again.synchronising(1) == catalog.synchronising(1)
    return "".join(member.node for member in catalog.synchronising(1))


def test_by_policy() -> None:
    """Automatic where nothing else is said; a change of the policy holds at once."""
    assert after() == "bc"
    assert after(policy("manual")) == ""
    assert after(policy("manual"), policy("automatic")) == "bc"


def test_told_to() -> None:
    """Those that join now, until they are in sync; one that joins later was told nothing."""
    assert after(policy("manual"), ON) == "bc"
    assert after(policy("manual"), ON, view(2, "ab", "c")) == "c"
    assert after(policy("manual"), ON, view(2, "ac"), view(3, "ac", "B")) == ""
    assert after(policy("manual"), view(2, "a", "b"), ON, view(3, "a", "bc")) == "b"
    assert after(policy("manual"), ON, view(2, "a", "c"), view(3, "a", "cb")) == "cb"


def test_told_to_stop() -> None:
    """By hand they are as if nobody had told them; with automatic it is remembered, until they
    are told to go on, or restart."""
    manual = policy("manual")
    assert after(manual, ON, OFF) == ""
    assert after(manual, ON, OFF, policy("automatic")) == "bc"
    assert after(OFF) == ""
    assert after(OFF, policy("automatic")) == ""
    assert after(OFF, ON) == "bc"
    assert after(OFF, view(2, "a", "c"), view(3, "a", "cB")) == "b"


def test_its_value_is_how_many_were_told() -> None:
    """None when nobody joins, or nobody was synchronising; an unknown queue is refused."""
    catalog = Catalog()
    catalog.apply(1, DECLARE)
    assert catalog.apply(2, ON).value == catalog.apply(3, OFF).value == 0
    catalog.apply(4, view(1, "a", "bc"))
    assert catalog.apply(5, OFF).value == 2
    assert catalog.apply(6, OFF).value == 0
    assert catalog.apply(7, ON).queues == (1,)
    assert catalog.apply(8, Synchronise("nothing", False)).error == "QueueNotFound"


def test_losses_are_acknowledged_up_to_a_number() -> None:
    """A smaller one, of somebody who looked earlier, takes nothing back; it is in the snapshot."""
    catalog = Catalog()
    catalog.apply(1, DECLARE)
    for index, (lost, known) in enumerate(((3, 3), (2, 3), (5, 5)), 2):
        command = decode_command(encode_command(AcknowledgeLosses("orders", lost)))
        assert catalog.apply(index, command).queues == (1,)
        record = Catalog.restore(catalog.snapshot()).queue_named("orders")
        assert record is not None
        assert record.losses_known == known
    assert catalog.apply(9, AcknowledgeLosses("nothing", 1)).error == "QueueNotFound"
