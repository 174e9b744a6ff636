"""A worker whose Python has no mirrorq says which Python that is, and what to do."""

from __future__ import annotations

import pickle
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.types import BinaryType, StructField, StructType

import pyspark_mirrorq
from pyspark_mirrorq.options import parse
from pyspark_mirrorq.snapshot_reader import SnapshotReader
from pyspark_mirrorq.stream_reader import QueueStream
from pyspark_mirrorq.workers import check_python
from pyspark_mirrorq.writer import BatchWriter, StreamWriter

LONG_S = 120
OPTIONS = parse({"endpoints": "tcp://127.0.0.1:1", "queue": "x", "mode": "browse"})
SCHEMA = StructType([StructField("value", BinaryType())])


def batch_writer() -> BatchWriter:
    """One that has asked no cluster for its queues."""
    made: BatchWriter = object.__new__(BatchWriter)
    made.__dict__.update(_options=OPTIONS, _run="run")
    return made


SENT = {
    "batch read": lambda: SnapshotReader(OPTIONS, ("value",)),
    "stream read": lambda: QueueStream(OPTIONS, ("value",)),
    "batch write": batch_writer,
    "stream write": lambda: StreamWriter(OPTIONS, SCHEMA),
}
"""What Spark sends to workers."""


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent_arrives(name: str) -> None:
    sent = SENT[name]()
    arrived = pickle.loads(cloudpickle.dumps(sent))
    assert type(arrived) is type(sent)
    assert arrived.__dict__ == sent.__dict__
    again = pickle.loads(cloudpickle.dumps(arrived))
    assert again.__dict__ == sent.__dict__


@pytest.mark.parametrize("missing", ["mirrorq", "pyspark_mirrorq"])
@pytest.mark.parametrize("name", SENT)
def test_a_worker_without_mirrorq_says_so(name: str, missing: str) -> None:
    code = f"import pickle, sys; sys.modules[{missing!r}] = None; pickle.load(sys.stdin.buffer)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=cloudpickle.dumps(SENT[name]()),
        capture_output=True,
        timeout=LONG_S,
    )
    assert done.returncode == 1
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith(f"ImportError: {sys.executable} on ")
    assert missing in said
    assert "PYSPARK_PYTHON" in said


def session(python: str, files: str = "") -> Any:
    """What is asked of one."""
    conf = {"spark.submit.pyFiles": files}
    return SimpleNamespace(
        sparkContext=SimpleNamespace(pythonExec=python, getConf=lambda: conf),
        dataSource=SimpleNamespace(register=lambda _: None),
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has nothing installed."""
    path = tmp_path_factory.mktemp("bare")
    venv.create(path, symlinks=True)
    return str(path / "bin" / "python")


def test_the_driver_finds_a_python_without_mirrorq(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is sent."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for use in (pyspark_mirrorq.register, check_python):
        with pytest.raises(ImportError, match="Spark runs, has no mirrorq") as told:
            use(session(bare))
        assert bare in str(told.value)
        assert f"PYSPARK_PYTHON={sys.executable}" in str(told.value)


def test_the_driver_says_nothing_of_what_it_cannot_know(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python of other machines, files that go along, a session without a context."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    check_python(session(sys.executable))
    check_python(session(str(tmp_path / "environment" / "bin" / "python")))
    check_python(session(bare, files="/somewhere/mirrorq.zip"))
    check_python(SimpleNamespace())  # type: ignore[arg-type]
