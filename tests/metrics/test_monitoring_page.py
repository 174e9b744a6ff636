"""docs/monitoring.md: its Python runs as it stands, and headers go where it says they go."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, until

from mirrorq import Node, connect
from mirrorq.protocol.effects import Notice

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_every_python_block_runs(tmp_path: Path) -> None:
    """In order, as one program, against one node."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == 1
    with Node("a", path=tmp_path / "a") as node:
        names: dict[str, object] = {"node": node}
        try:
            for block in blocks:
                above = "\n" * text.count("\n", 0, block.start(1))
                exec(compile(above + block[1], str(PAGE), "exec"), names)
        finally:
            registry = names["REGISTRY"]
            for collector in list(registry._collector_to_names):  # type: ignore[attr-defined]
                if type(collector).__module__ == "mirrorq.metrics":
                    registry.unregister(collector)  # type: ignore[attr-defined]


def test_a_trace_goes_through_a_queue_and_its_dead_letters(tmp_path: Path) -> None:
    """From a client's put to a consumer's callback, again when it comes again, and on into the
    dead-letter queue."""
    seen: list[tuple[object, int]] = []
    done = threading.Event()

    def refuse(message: object) -> None:
        seen.append((message.headers["traceparent"], message.delivery_count))  # type: ignore[attr-defined]
        message.nack(requeue=len(seen) == 1)  # type: ignore[attr-defined]
        if len(seen) == 2:
            done.set()

    with (
        Node("a", path=tmp_path / "a", listen="tcp://127.0.0.1:0") as node,
        connect(node.listening, timeout=DEADLINE_S) as client,
    ):
        dead = node.queue("dead")
        node.set_policy("dead", "^orders$", {"dead-letter-queue": "dead"})
        orders = client.queue("orders")
        orders.put(b"x", headers={"traceparent": TRACEPARENT, "tracestate": "a=b"}).result(
            DEADLINE_S
        )
        consumer = orders.consume(refuse)
        assert done.wait(DEADLINE_S)
        assert seen == [(TRACEPARENT, 1), (TRACEPARENT, 2)]
        with dead.get(timeout=DEADLINE_S) as letter:
            assert letter.headers["traceparent"] == TRACEPARENT
            assert letter.headers["tracestate"] == "a=b"
        consumer.cancel()
        orders.close()
        dead.close()


def test_the_library_writes_nowhere_by_itself() -> None:
    """A warning goes where the application says, or nowhere; an error that nobody would see goes
    to standard error. It is the application's as soon as there is a handler."""
    code = (
        "import logging, mirrorq; log = logging.getLogger('mirrorq');"
        "log.warning('seen by nobody'); log.error('seen');"
        "logging.basicConfig(stream=__import__('sys').stdout, format='%(message)s');"
        "log.error('once')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("once\n", "seen\n")


def test_changes_of_state_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leading the catalog and a queue's first view: a line each, and the same for a listener."""
    heard: list[Notice] = []
    with caplog.at_level(logging.INFO, "mirrorq"), Node("a", path=tmp_path / "a") as node:
        node.add_listener(heard.append)
        node.queue("orders").close()
        until(lambda: any(notice.kind == "view" for notice in heard))
    lines = [record.getMessage() for record in caplog.records]
    assert sum("leads the catalog in term" in line for line in lines) == 1
    views = [line for line in lines if "queue 'orders': epoch 1, master a" in line]
    assert len(views) == 1
    assert [notice.text for notice in heard if notice.kind == "view"] == [
        "queue 'orders': epoch 1, master a"
    ]
