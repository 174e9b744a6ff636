"""The checks themselves: each thing that must not be is found, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.chaos.checks import STALE_MS, check
from harness.chaos.history import History, Recorder, body_of, value_of

GOOD = """
a 1 p.1
a 1 p.2
a 1 p.3
o 2 p.1 1
o 2 p.2 2
u 2 p.3 unknown
d 3 p.1 1 1 0
d 3 p.2 2 1 0
d 4 p.2 2 2 1
d 4 p.3 3 1 0
k 5 p.1 1
k 5 p.2 2
r 5 p.3 1 refused
"""


def history_of(text: str) -> History:
    history = History()
    for line in text.strip().splitlines():
        history.take("w", line)
    return history


def test_a_good_history() -> None:
    found = check(history_of(GOOD))
    assert found.wrong == []
    assert (found.attempts, found.acknowledged, found.ok) == (3, 2, 2)
    assert (found.unknown, found.recovered, found.repeated) == (1, 1, 1)
    assert (found.acked, found.acks_refused) == (2, 1)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("lost", "a 1 q.1\no 2 q.1 9"),
        ("unexpected", "d 3 q.1 9 1 0"),
        ("unexpected", "a 1 q.1\nn 2 q.1 full\nd 3 q.1 9 1 0"),
        ("unexpected", "d 6 p.1 8 2 1"),
        ("unexpected", "a 1 q.1\no 2 q.1 9\nd 3 q.1 10 1 0"),
        ("unexpected", "x 3 garbage"),
        ("duplicated", "d 6 p.1 1 2 0"),
        ("duplicated", "d 6 p.2 2 2 1"),
        ("duplicated", "o 7 p.1 1"),
        ("unresolved", "a 9 p.4"),
        ("undone", f"d {6 + STALE_MS} p.1 1 2 1"),
        ("misplaced", "a 1 p.4\no 2 p.4 0\nd 3 p.4 0 1 0"),
        ("misplaced", "a 1 q.1\no 2 q.1 1\nd 3 q.1 1 1 0"),
    ],
)
def test_each_wrong_is_found(what: str, change: str) -> None:
    found = check(history_of(GOOD + change))
    assert getattr(found, what) >= 1
    assert found.wrong[0].startswith(what)
    others = {"lost", "unexpected", "duplicated", "unresolved", "undone", "misplaced"} - {what}
    assert not any(getattr(found, other) for other in others)


def test_a_killed_worker_may_lack_outcomes() -> None:
    assert check(history_of(GOOD + "a 9 p.4"), frozenset({"w"})).wrong == []


def test_what_a_spool_has_accepted_is_to_be_delivered_in_order() -> None:
    said = "a 1 q.1\na 1 q.2\ns 2 q.1 -\ns 2 q.2 -\n"
    assert check(history_of(said + "d 3 q.1 1 1 0\nd 3 q.2 2 1 0")).wrong == []
    assert check(history_of(said + "d 3 q.1 1 1 0")).lost == 1
    assert check(history_of(said + "d 3 q.1 2 1 0\nd 3 q.2 1 1 0")).misplaced == 1


def test_files(tmp_path: Path) -> None:
    """What is written is read, but for the half line of a process that was killed."""
    path = tmp_path / "w.history"
    recorder = Recorder(path)
    recorder.write_all("a", [("p.1",), ("p.2",)])
    recorder.write("o", "p.1", 7)
    with path.open("ab") as file:
        file.write(b"o 12 p.2 1")
    history = History.read([path])
    assert history.attempts["p.1"].sequences == [7]
    assert history.attempts["p.2"].outcomes == []
    assert history.attempts["p.1"].worker == "w"


def test_bodies_say_which_they_are() -> None:
    for number in range(200):
        body = body_of(f"w0-producer.{number}")
        assert value_of(body) == f"w0-producer.{number}"
        assert value_of(body[:-1] + b"?") is None
    assert value_of(b"") is None
