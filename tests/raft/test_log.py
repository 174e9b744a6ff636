"""The log in memory, its writes, and what merging writes means."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorq.cluster.raft.log import RaftLog, merge_writes
from mirrorq.cluster.raft.messages import KIND_COMMAND, decode_voters, encode_voters
from mirrorq.protocol.effects import (
    RaftEntry,
    RaftImage,
    RaftSnapshot,
    RaftState,
    RaftWrite,
    SnapshotPage,
)
from mirrorq.protocol.identities import StoreId

from .cluster import written

A, B, C = (StoreId(name, 1) for name in "abc")

steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "truncate", "compact", "reset"]),
        st.integers(1, 5),
    ),
    max_size=20,
)


def change(log: RaftLog, term: int, action: str, amount: int) -> RaftWrite | None:
    """Do one change that a core may do and return its write."""
    if action == "append":
        first = log.last_index + 1
        log.append([RaftEntry(first + i, term, KIND_COMMAND, b"x") for i in range(amount)])
    elif action == "truncate" and log.last_index > log.snapshot_index:
        log.truncate(max(log.snapshot_index + 1, log.last_index - amount))
        log.append([RaftEntry(log.last_index + 1, term, KIND_COMMAND, b"y")])
    elif action == "compact" and log.last_index > log.snapshot_index:
        index = min(log.last_index, log.snapshot_index + amount)
        held = log.term_at(index)
        assert held is not None
        log.write_page(SnapshotPage(index, 0, b"%d" % index))
        log.compact(RaftSnapshot(index, held, (A,), (b"%d" % index,)))
    elif action == "reset":
        index = log.snapshot_index + amount
        log.write_page(SnapshotPage(index, 0, b"%d" % index))
        log.reset(RaftSnapshot(index, term, (A,), (b"%d" % index,)))
    return log.take_changes(RaftState(term)) if log.has_changes else None


@settings(max_examples=300)
@given(steps, st.integers(0, 6))
@example([("append", 5), ("truncate", 3), ("append", 1)], 1)
@example([("append", 5), ("reset", 2)], 0)
@example([("append", 5), ("truncate", 3), ("compact", 3), ("reset", 1)], 1)
def test_a_merged_write_leaves_the_disk_as_its_parts_do(
    script: list[tuple[str, int]], begun: int
) -> None:
    """Group commit changes nothing: parts one by one, merged, and the log itself agree."""
    log = RaftLog(RaftImage())
    one_by_one, base = RaftImage(), RaftImage()
    pages: dict[tuple[int, int], bytes] = {}
    base_pages = dict(pages)
    merged: RaftWrite | None = None
    for term, (action, amount) in enumerate(script, 1):
        write = change(log, term, action, amount)
        if write is not None:
            one_by_one = written(one_by_one, write, pages)
        if term <= begun:
            base, base_pages = one_by_one, dict(pages)
        else:
            merged = merge_writes(merged, write)
    together = base if merged is None else written(base, merged, base_pages)
    assert together == one_by_one
    assert together.snapshot == log.snapshot
    assert together.entries == log.entries_from(log.snapshot_index + 1, log.last_index)


def test_the_last_state_wins_and_none_keeps_the_earlier() -> None:
    """Of two hard states the later is written; a write without one takes none away."""
    first, second = RaftWrite(RaftState(1)), RaftWrite(RaftState(2))
    assert merge_writes(first, second) == second
    assert merge_writes(second, RaftWrite()) == second
    assert merge_writes(None, first) == first
    assert merge_writes(first, None) == first


def test_agreement_skips_a_whole_term() -> None:
    """Above the answer no log that ends in that term can agree."""
    log = RaftLog(RaftImage(snapshot=RaftSnapshot(1, 1, (A,), ())))
    terms = (1, 1, 3, 3, 3, 4)
    log.append([RaftEntry(2 + i, term, KIND_COMMAND, b"") for i, term in enumerate(terms)])
    assert log.agreement(99, 9) == (7, 4)
    assert log.agreement(6, 2) == (3, 1)
    assert log.agreement(6, 0) == (1, 1)
    assert log.agreement(-5, 9) == (1, 1)


def test_entries_are_cut_to_size_but_never_to_nothing() -> None:
    """One entry travels however large it is."""
    log = RaftLog(RaftImage())
    log.append([RaftEntry(index, 1, KIND_COMMAND, b"12345") for index in (1, 2, 3)])
    assert [entry.index for entry in log.entries_from(1, 3, 1)] == [1]
    assert [entry.index for entry in log.entries_from(1, 3, 10)] == [1, 2]
    assert log.entries_from(4, 3, 10) == ()


@given(st.lists(st.builds(StoreId, st.text(max_size=4), st.integers(0, 2**63 - 1)), unique=True))
def test_voters_survive_their_bytes(voters: list[StoreId]) -> None:
    """Equal sets give equal bytes, and the bytes give the sorted set."""
    data = encode_voters(voters)
    assert decode_voters(data) == tuple(sorted(voters))
    assert encode_voters(reversed(voters)) == data


@given(st.binary(max_size=30))
def test_bytes_that_are_no_voters_are_no_voters(data: bytes) -> None:
    """Anything else decodes to None or to what encodes back to it; nothing raises."""
    voters = decode_voters(data)
    assert voters is None or encode_voters(voters) == data


def test_a_doubled_voter_is_no_voter() -> None:
    """The same store twice would make a majority of its own."""
    assert decode_voters(encode_voters((A, A))) is None
