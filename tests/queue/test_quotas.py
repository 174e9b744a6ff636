"""max-rate and max-consumers, as users meet them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrorq import Message, Node, PreconditionFailed

pytestmark = pytest.mark.real

WAIT_S = 60.0


def ignore(_: Message) -> None:
    """A callback that keeps what it is given."""


def test_puts_beyond_the_rate_wait_and_a_consumer_too_many_is_refused(tmp_path: Path) -> None:
    with Node("a", path=tmp_path) as node:
        definition = {"max-rate": 100, "max-rate-bytes": 1000, "max-consumers": 1}
        node.set_policy("few", "^jobs$", definition)
        jobs = node.queue("jobs")
        puts = [jobs.put(b"0123456789") for _ in range(110)]
        assert [put.result(WAIT_S) for put in puts] == list(range(1, 111))
        assert jobs.status().blocked_by == ""
        with node.queue("jobs") as other:
            first = jobs.consume(ignore)
            with pytest.raises(PreconditionFailed, match="max-consumers 1"):
                other.consume(ignore)
            first.cancel()
            other.consume(ignore).cancel()
