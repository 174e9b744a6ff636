"""A call that waits for long says in the log what for: once, and only then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from conformance.faces import WAIT_S, Stage, case

CALLS: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "result": (lambda _, put: put.result(), "a confirmation has had no outcome"),
    "wait_for_confirms": (
        lambda queue, _: queue.wait_for_confirms(),
        "queue 'orders': 2 messages are not confirmed yet",
    ),
    "put": (lambda queue, _: queue.put(b"y"), "put() waits: "),
}


@case(nodes=3, unconfirmed_count_max=2)
@pytest.mark.parametrize("name", CALLS)
def test_one_of_those_that_wait_is_told(
    stage: Stage, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    call, words = CALLS[name]
    caplog.set_level(logging.INFO, "mirrorq")
    queue = stage.alone()
    assert queue.put(b"x").result(WAIT_S) == 1
    assert not [text for text in caplog.messages if words in text]
    stage.cluster.crash("a")
    stage.until(stage.is_down)
    put = queue.put_many([b"x", b"y"])
    waiting = [stage.begin(call, queue, put) for _ in range(5)]
    stage.run(60)
    told = [text for text in caplog.messages if words in text]
    assert len(told) == 1
    assert "no master" in told[0] or name == "wait_for_confirms"
    stage.cluster.restart("a")
    for task in waiting:
        task.result(WAIT_S)
