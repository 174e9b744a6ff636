"""What fuzzing has found, one small test each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from attrs import evolve
from msgspec.structs import replace

from mirrorq.api.message import Chunk, Message
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.catalog.image import encode_pages
from mirrorq.cluster.raft.messages import Received
from mirrorq.cluster.raft.raft import Raft
from mirrorq.config import Config
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import DeclareQueue, RemoveNode
from mirrorq.protocol.effects import RaftEntry, RaftImage, RaftSnapshot, RaftState
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.raft import AppendRequest
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store.records import Damaged, decoded, seal
from mirrorq.wire.frames import pack_publish

NO_TEXT = b"\xa1\xff"
"""MessagePack's string of one byte that begins no character."""
DEEP = b"\x91" * 100_000


def test_a_command_whose_text_is_no_utf8_is_refused() -> None:
    """It came out of the engine's step as UnicodeDecodeError and ended the node."""
    data = encode_command(RemoveNode("a", 1)).replace(b"\xa1a", NO_TEXT)
    with pytest.raises(ProtocolError, match=r"a catalog command of .* cannot be read"):
        decode_command(data)


def test_a_catalog_snapshot_whose_text_is_no_utf8_is_refused() -> None:
    catalog = Catalog()
    catalog.apply(1, DeclareQueue("q", True, False, False, "a", None, (MemberId("a", 1, 1),)))
    with pytest.raises(ProtocolError, match=r"a catalog snapshot of .* cannot be read"):
        Catalog.restore([page.replace(b"\xa1q", NO_TEXT) for page in catalog.snapshot()])


def test_a_catalog_snapshot_with_a_queue_of_nobody_is_refused() -> None:
    """A view without members has no master: whoever asked for it ended the node."""
    catalog = Catalog()
    catalog.apply(1, DeclareQueue("q", True, False, False, "a", None, (MemberId("a", 1, 1),)))
    queue = catalog.queue(1)
    assert queue is not None
    of_nobody = evolve(queue, view=replace(queue.view, members=()))
    ((page, _),) = encode_pages(1, [of_nobody])
    with pytest.raises(ProtocolError, match="queue 'q'"):
        Catalog.restore((page,))


def test_properties_that_cannot_be_read_are_named() -> None:
    """`headers` raised an error of a library that users need not know."""
    handle: Any = SimpleNamespace(name="orders", queue_name="orders")
    for column in (b"\x05", NO_TEXT, DEEP):
        frame = pack_publish([b""], [column])
        message = Message(Chunk(handle, 0, Delivery(1, 1, 7, 7, 1), 7, 1, 0, frame), 0)
        with pytest.raises(ProtocolError, match="message 7 of queue 'orders'"):
            _ = message.headers


def test_a_deeply_nested_record_is_damage() -> None:
    """RecursionError is no ValueError: it went past what makes a StoreCorrupt of it."""
    sealed = seal(b"state", DEEP)
    with pytest.raises(Damaged):
        decoded("raft", b"state", sealed, lambda data: msgspec.msgpack.decode(data, type=RaftState))


def test_a_state_that_no_frame_can_go_on_from_is_refused() -> None:
    """The next publish could not be stamped, which ended the node that was its master."""
    state = QueueState()
    state.next_sequence = 2**63
    with pytest.raises(ValueError, match="queue's state"):
        QueueState.decode(state.encode())
    state.next_sequence = 5
    state.live = RangeSet(((1, 5),))
    with pytest.raises(ValueError, match="holds 5 of 4"):
        QueueState.decode(state.encode())


def test_a_raft_entry_that_the_store_cannot_hold_is_dropped() -> None:
    """Its kind did not fit the record: the commit raised, and the node ended."""
    a, b = StoreId("a", 1), StoreId("b", 1)
    raft = Raft(a, RaftImage(RaftState(1), RaftSnapshot(1, 1, (a, b), ())), Config(), seed=1)
    entry = RaftEntry(2, 1, 2**32, b"")
    effects = raft.step(0, Received(b, AppendRequest(1, 1, 1, (entry,), 1, 0)))
    assert effects.persist is None
    assert raft.last_index == 1
