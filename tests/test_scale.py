"""benches/scale: what it measures, and what it writes; benches/kernel.py, which it counts with."""

from __future__ import annotations

import importlib
import os
import socket
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


def test_an_aim_that_is_missed_says_so(tmp_path: Path) -> None:
    """Medians over samples, judged; what nobody has measured says that."""
    part, aims = importlib.import_module("scale.part"), importlib.import_module("scale.aims")
    results = importlib.import_module("compare.results")
    samples = [
        part.found("bench", "three nodes", share=share, put=250_000 + share)
        for share in (40, 90, 49)
    ]
    text = aims.aims_table(samples)
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- aims: begin -->old\n<!-- aims: end -->\nb\n")
    results.write_into(page, text, "aims")
    assert page.read_text() == f"a\n<!-- aims: begin -->\n{text}\n<!-- aims: end -->\nb\n"
    rows = {line.split(" | ")[0]: line for line in text.splitlines()}
    assert "| 50 % | 49 % | missed |" in rows["| `put_many`, 100 bytes, share of the ceiling"]
    assert "| 250,050 |  |" in rows["| `put` without waiting, confirmed"]
    assert "not yet" in rows["| the same, NATS R3"]
    with pytest.raises(SystemExit, match="has no lines <!-- scale nodes: begin -->"):
        results.write_into(page, text, "scale nodes")
