"""A killed process loses nothing that `commit` returned for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .writing import PYTHON, QUEUE, SOURCES, bodies_of, frames_of, open_store, starts_before

pytestmark = pytest.mark.real

COMMITS_PER_LIFE = (1, 7, 40, 3, 60, 25)

WORKER = """
import sys
from mirrorq.protocol.effects import QueueWrite, RaftEntry, RaftWrite

sys.path.insert(0, sys.argv[2])
from store.writing import QUEUE, Writer, open_store

store = open_store(__import__("pathlib").Path(sys.argv[1]))
image = store.load(QUEUE)
writer = Writer()
writer.lsn = image.entries[-1].lsn if image.entries else image.state_lsn
for entry in image.entries:
    if entry.payload is None:
        writer.sequence = entry.header.last_sequence
raft = len(store.raft_image().entries)
while True:
    # Every body names its sequence, in several runs of several sizes.
    entries = [writer.ack(1, 1)]
    for count in (1, 50, 3):
        first = writer.sequence + 1
        bodies = [b"%d" % s + b"." * 3000 for s in range(first, first + count)]
        entries.append(writer.publish(bodies))
    raft += 1
    write = QueueWrite(QUEUE, append=tuple(entries))
    store.commit([write], RaftWrite(append=(RaftEntry(raft, 1, 0, b"%d" % writer.lsn),)))
    print(writer.lsn, writer.sequence, raft, flush=True)
"""


def one_life(path: Path, commits: int) -> tuple[int, int, int]:
    """Let a process commit, kill it while it goes on, and return what it said last."""
    worker = subprocess.Popen(
        [PYTHON, "-c", WORKER, str(path), str(Path(__file__).parents[1])],
        env={"PYTHONPATH": SOURCES},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in range(commits)]
    worker.kill()
    lines += worker.stdout.read().splitlines(keepends=True)
    worker.wait()
    last = [line for line in lines if line.endswith("\n")][-1]
    lsn, sequence, raft = map(int, last.split())
    return lsn, sequence, raft


@pytest.mark.smoke
def test_what_was_committed_survives_sigkill(tmp_path: Path) -> None:
    """Six lives of one store, each killed between or in the middle of commits: what was
    reported is there, commits are whole, the queue and the catalog agree, and the walk of
    the pages that follows an unclean end finds nothing wrong."""
    path = tmp_path / "store"
    for life, commits in enumerate(COMMITS_PER_LIFE, 1):
        lsn, sequence, raft = one_life(path, commits)
        store = open_store(path)
        assert starts_before(store) == 2 * life - 1
        entries = store.load(QUEUE).entries
        assert entries[-1].lsn >= lsn
        assert entries[-1].lsn % 4 == 0
        raft_entries = store.raft_image().entries
        assert len(raft_entries) >= raft
        assert int(raft_entries[-1].data) == entries[-1].lsn
        found = bodies_of(store.read(QUEUE, 1, 1 << 40, 1 << 40))
        assert list(found) == list(range(1, entries[-1].header.last_sequence + 1))
        assert entries[-1].header.last_sequence >= sequence
        assert all(body.startswith(b"%d." % number) for number, body in found.items())
        assert len(frames_of(entries)) == entries[-1].lsn
        store.close()
