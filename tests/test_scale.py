"""benches/scale: what it measures, and what it writes; benches/kernel.py, which it counts with."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.soak]

BENCHES = Path(__file__).parents[1] / "benches"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHES)


@pytest.mark.real
def test_bytes_are_counted_by_who_sent_them() -> None:
    kernel = importlib.import_module("kernel")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as ours, listening.accept()[0] as theirs:
            ours.sendall(bytes(10_000))
            left = 10_000
            while left:
                left -= len(theirs.recv(left))
            theirs.sendall(bytes(77))
            assert len(ours.recv(77)) > 0
            assert kernel.sent_bytes([os.getpid(), os.getppid()], [port]) == [10_000, 0]
            assert kernel.sent_bytes([os.getpid()], [ours.getsockname()[1]]) == [77]


def test_instructions_of_nobody_are_counted_where_the_kernel_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = importlib.import_module("kernel")

    def refuse(thread: int) -> int:
        raise PermissionError(thread)

    monkeypatch.setattr(kernel, "_open_counter", refuse)
    counting = kernel.Instructions([os.getpid(), os.getppid()])
    assert counting.count() == [None, None]
    counting.close()


def test_instructions_are_counted_or_left_out() -> None:
    """A machine may not let count them; where it does, work costs some."""
    kernel = importlib.import_module("kernel")
    counting = kernel.Instructions([os.getpid()])
    try:
        sum(range(100_000))
        (count,) = counting.count()
        assert count is None or count > 100_000
    finally:
        counting.close()
    assert kernel.cpu_s(os.getpid()) > 0
    assert kernel.anonymous_mb(os.getpid()) > 1


@pytest.mark.real
def test_a_deep_queue_beside_an_empty_one(tmp_path: Path) -> None:
    """A real node, killed and started again; samples are kept and come back as a table."""
    results, place = tmp_path / "found.jsonl", tmp_path / "place"
    place.mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "scale", "--only", "depth", "--depths", "3000"),
            *("--seconds", "0.01", "--path", str(place), "--results", str(results)),
        ],
        cwd=BENCHES,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == [], "nothing stays behind"
    samples = [json.loads(line) for line in results.read_text().splitlines()]
    assert [sample["at"] for sample in samples] == ["3000", "3000"]
    deep, again = (sample["figures"] for sample in samples)
    assert deep["put_deep"] > 0
    assert deep["take_deep"] > 0
    assert again["first_s"] >= again["restart_s"] > 0
    assert "| 3,000 |" in done.stdout


def test_an_aim_that_is_missed_says_so(tmp_path: Path) -> None:
    """Medians over samples, judged; what nobody has measured says that."""
    part, aims = importlib.import_module("scale.part"), importlib.import_module("scale.aims")
    report = importlib.import_module("compare.report")
    samples = [
        part.found("bench", "three nodes", share=share, put=250_000 + share)
        for share in (40, 90, 49)
    ]
    text = aims.aims_table(samples)
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- aims: begin -->old\n<!-- aims: end -->\nb\n")
    report.write_into(page, text, "aims")
    assert page.read_text() == f"a\n<!-- aims: begin -->\n{text}\n<!-- aims: end -->\nb\n"
    rows = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert "| 50 % | 49 % | missed |" in rows["| `put_many`, 100 bytes, share of the ceiling"]
    assert "| 250,050 |  |" in rows["| `put` without waiting, confirmed"]
    assert "not yet" in rows["| the same, NATS R3"]
    with pytest.raises(SystemExit, match="has no lines <!-- scale nodes: begin -->"):
        report.write_into(page, text, "scale nodes")


@pytest.mark.real
def test_every_row_of_a_queue_of_different_sizes(tmp_path: Path) -> None:
    """Three real nodes and a few messages: each row is measured, and nothing stays behind."""
    results, place = tmp_path / "found.jsonl", tmp_path / "place"
    place.mkdir()
    wanted = "load,lease,comeback,join,restart,purge"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "shape", "--messages", "5000", "--only", wanted),
            *("--path", str(place), "--results", str(results)),
        ],
        cwd=BENCHES,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == [], "nothing stays behind"
    samples = [json.loads(line) for line in results.read_text().splitlines()]
    found = {sample["part"].split()[1]: sample["figures"] for sample in samples}
    assert ",".join(found) == wanted
    assert found["lease"]["held"] == 5000
    assert found["load"]["step_max_ms"] > 0
    assert found["join"]["sent_mb"] > found["comeback"]["sent_mb"] > 0
    assert done.stdout.count("| 5,000 |") == len(found)
