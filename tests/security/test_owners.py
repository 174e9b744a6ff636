"""Exclusive queues with keys: the owner is known by its key and its name together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit import until
from tests.security.conftest import Connecting
from tests.security.keys import KeyRing

from mirrorq.api.host import Declared
from mirrorq.api.queue import MirroredQueue
from mirrorq.client.client import Client
from mirrorq.errors import MirrorQError, PreconditionFailed
from mirrorq.node.node import Node

pytestmark = pytest.mark.real

Named = Callable[[str, str], Client]
ALL = {right: ["*"] for right in ("read", "write", "configure")}


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    """Whose clients the node lists from its start."""
    ring = KeyRing(tmp_path / "keys")
    ring.client("owner", **ALL)
    ring.client("other", **ALL)
    ring.client("read", read=["mine"])
    ring.client("write", write=["mine"])
    return ring


@pytest.fixture
def named(
    monkeypatch: pytest.MonkeyPatch, ring: KeyRing, node: Node, connecting: Connecting
) -> Named:
    """A client with a key, and a name of its own choice."""

    def connect_as(name: str, key: str) -> Client:
        monkeypatch.setattr(Client, "_own_name", lambda _: name)
        return connecting(node.endpoint, ring.of(key))

    return connect_as


@pytest.mark.parametrize("right", ["read", "write"])
def test_a_key_that_opens_a_session_does_not_end_an_exclusive_queue(
    named: Named, right: str
) -> None:
    """Under the owner's name and number, too."""
    owner = named("worker", "owner")
    mine = owner.queue("mine", exclusive=True)
    mine.put(b"m1").result(30)
    other = named("worker", right)
    for _ in range(5):  # One of these has the number of the owner's handle.
        theirs = MirroredQueue._attach(other, Declared(mine._handle.queue_id), "mine")
        if right == "write":
            assert theirs.put(b"m2").result(30)
        else:
            with pytest.raises(MirrorQError, match="'mine' is exclusive"):
                theirs.get(timeout=30)
    assert mine.get(timeout=30).body == b"m1"


def test_another_key_under_an_owners_name_takes_nothing(named: Named) -> None:
    """A queue of a connection is of a name and a key: neither a session under the name nor a
    declaration that gives it passes for the owner's."""
    owner = named("worker", "owner")
    mine = owner.queue("mine", exclusive="connection")
    mine.put(b"m1").result(30)
    other = named("worker", "other")
    with pytest.raises(PreconditionFailed, match="'mine' is exclusive"):
        other.queue("mine", exclusive="connection")
    theirs = other.queue("mine", passive=True)
    for take in (lambda: theirs.get(timeout=30), theirs.purge):
        with pytest.raises(PreconditionFailed, match="exclusive"):
            take()
    with pytest.raises(PreconditionFailed, match="other properties"):
        named("worker", "read").queue("mine", exclusive="connection")
    assert mine.get(timeout=30).body == b"m1"


def test_a_queue_of_a_client_goes_with_the_key_and_the_name(node: Node, named: Named) -> None:
    """The same name with another key keeps nothing alive."""
    owner = named("worker", "owner")
    owner.queue("mine", exclusive="connection")
    other = named("worker", "other")
    theirs = other.queue("mine", passive=True)
    theirs.put(b"m1").result(30)
    owner.close()
    until(lambda: not node.queues())
