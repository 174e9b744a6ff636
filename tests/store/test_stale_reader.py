"""A process that read a store and was killed keeps no page from being used again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mirrorq.protocol.effects import QueueWrite
from mirrorq.store import environment

from .writing import PYTHON, QUEUE, Writer, open_store

pytestmark = pytest.mark.real

READER = """
import lmdb, os, signal, sys
reader = lmdb.open(sys.argv[1], readonly=True, max_dbs=8, lib_version=0)
transaction = reader.begin()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_backup_lets_the_file_grow_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Churn beside what is left of it: the map stays as large as it was."""
    monkeypatch.setattr(environment, "MAP_BYTES_START", 2 << 20)
    store = open_store(tmp_path / "a")
    writer = Writer()
    store.commit([QueueWrite(QUEUE, append=(writer.publish([b"x" * 100_000]),))])
    map_bytes = store._environment._lmdb.info()["map_size"]
    died = subprocess.run([PYTHON, "-c", READER, str(tmp_path / "a")], timeout=60)
    assert died.returncode == -9
    assert store._environment._lmdb.info()["num_readers"] == 1
    for _ in range(60):
        entry = writer.publish([b"x" * 100_000])
        first = entry.header.first_sequence
        store.commit([QueueWrite(QUEUE, append=(entry,), release=((1, first - 1),))])
    assert store._environment._lmdb.info()["map_size"] == map_bytes
    store.close()
