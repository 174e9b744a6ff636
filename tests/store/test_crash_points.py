"""A crash at every point of a store's writing: what was reported is there.

`make crashpoints` is the long form: more lives, longer ones, more parts lost at each point.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mirrorq.store import write_ahead

from . import log_bugs
from .crash_points import Examiner, crashes
from .recorded_life import small_bounds
from .recording import FILES, Event, Mark, Synced, Truncated, Written, build, counts, record
from .writing import MEMORY

pytestmark = [pytest.mark.real, pytest.mark.slow]

SEED = 4
COMMITS = "40"


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def events(directory: Path) -> list[Event]:
    """One life of a store with starts, cuts, checkpoints, transfers and Raft's writes."""
    return record(build(directory), directory / "life", "store.recorded_life", str(SEED), COMMITS)


@pytest.fixture
def examiner(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Examiner:
    from mirrorq.store import environment, queue_log, runs

    monkeypatch.setattr(runs, "RUN_BYTES_MAX", runs.RUN_BYTES_MAX)
    monkeypatch.setattr(queue_log, "DELETED_RUNS_MAX", queue_log.DELETED_RUNS_MAX)
    monkeypatch.setattr(environment, "MAP_BYTES_START", environment.MAP_BYTES_START)
    monkeypatch.setattr(write_ahead, "FILE_BYTES", write_ahead.FILE_BYTES)
    monkeypatch.setattr(write_ahead, "GROUP_BYTES_MAX", write_ahead.GROUP_BYTES_MAX)
    small_bounds()
    return Examiner(directory)


def test_the_recording_is_the_file(directory: Path, events: Sequence[Event]) -> None:
    """Nothing that changed the files was missed: their writes, done again, make the same files."""
    files = {name: bytearray() for name in FILES}
    for event in events:
        if isinstance(event, Written):
            file = files[event.file]
            file.extend(bytes(max(0, event.offset - len(file))))
            file[event.offset : event.offset + len(event.data)] = event.data
        elif isinstance(event, Truncated):
            file = files[event.file]
            file[event.size :] = bytes(max(0, event.size - len(file)))
    for name, file in files.items():
        assert bytes(file) == (directory / "life" / name).read_bytes(), name
    kinds = [type(event) for event in events]
    assert kinds.count(Mark) >= 40, counts(events)
    assert kinds.count(Synced) >= 40, counts(events)


def test_a_crash_at_every_point_loses_nothing_reported(
    examiner: Examiner, events: Sequence[Event]
) -> None:
    """The process killed after each write, and the power lost in each: the store opens with
    what was reported, or with the commit that was under way, goes on, and never refuses."""
    wrong = [examiner.examine(crash) for crash in crashes(events, random.Random(SEED), parts=1)]
    assert not any(wrong), next(filter(None, wrong))
    assert examiner.outcomes["right"] > 200
    assert examiner.outcomes["said"] == 0, examiner.last_said


def test_a_report_before_the_disk_is_found(examiner: Examiner, events: Sequence[Event]) -> None:
    """The check can fail: a store that reported each commit before its last write is caught."""
    early: list[Event] = []
    for event in events[: len(events) // 3]:
        early.insert(-1 if isinstance(event, Mark) else len(early), event)
    wrong = [examiner.examine(crash) for crash in crashes(early, random.Random(SEED), parts=0)]
    assert any(wrong)


@pytest.mark.parametrize("bug", log_bugs.WRITING)
def test_a_log_that_does_not_keep_its_word_is_found(
    directory: Path, examiner: Examiner, bug: str
) -> None:
    """The check can fail: whatever is left out when the write-ahead log is written, some crash
    loses something reported, brings back what was cut, or leaves a store that will not open."""
    path = directory / bug
    recorded = record(build(directory), path, "store.recorded_life", str(SEED), COMMITS, bug)
    assert _finds(examiner, recorded)


@pytest.mark.parametrize("bug", log_bugs.READING)
def test_a_start_that_believes_the_wrong_records_is_found(
    examiner: Examiner, events: Sequence[Event], bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check can fail on the other side, too: at the start after the crash."""
    monkeypatch.setattr(*log_bugs.READING[bug])
    assert _finds(examiner, events)


def _finds(examiner: Examiner, events: Sequence[Event]) -> bool:
    for crash in crashes(events, random.Random(SEED), parts=1):
        if examiner.examine(crash) is not None or examiner.outcomes["said"]:
            return True
    return False
