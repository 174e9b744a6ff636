"""What a real disk keeps of a node: queues, policies, bindings, and what is on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, until

from mirrorq import ConfigError, MirroredQueue, Node, PreconditionFailed

pytestmark = pytest.mark.real


def test_all_is_there_after_a_restart(tmp_path: Path) -> None:
    """Arguments, a policy, an exchange's binding, a transaction, an outbox, shards."""
    with Node("a", path=tmp_path) as node:
        node.set_policy("kept", "x", {"message-ttl": 60_000})
        queue = node.queue("orders", max_length=30, message_ttl=60)
        arguments = queue.status().arguments
        queue.put_many([b"%d" % number for number in range(20)]).result(DEADLINE_S)
        node.queue("done")
        node.exchange("events", "headers").bind("done", arguments={"x-match": "any", "a": 1})
        for message in queue.get_many(20, DEADLINE_S):
            message.ack_and_put("done", b"<%s>" % message.body)
        with queue.transaction() as step:
            step.put(b"last")
        step.result(DEADLINE_S)
        with node.queue("parts", shards=3) as parts:
            for number in range(6):
                parts.put(b"%d" % number, key=str(number)).result(DEADLINE_S)
    with Node("a", path=tmp_path) as node:
        node.wait_ready(DEADLINE_S)
        assert [policy.definition for policy in node.policies()] == [{"message-ttl": 60_000}]
        done, queue = node.queue("done"), node.queue("orders")
        until(lambda: done.qsize() == 20)
        assert sorted(m.body for m in done.browse()) == sorted(b"<%d>" % n for n in range(20))
        assert [m.body for m in queue.browse()] == [b"last"]
        assert queue.status().arguments == arguments == {"max-length": 30, "message-ttl": 60_000}
        with pytest.raises(PreconditionFailed, match="max-length=30, not 4"):
            node.queue("orders", max_length=4)
        events = node.exchange("events", passive=True, timeout=DEADLINE_S)
        assert list(events.publish("", b"1", headers={"a": 1}).result(DEADLINE_S)) == ["done"]
        assert events.publish("", b"2", headers={"b": 1}).result(DEADLINE_S) == {}
        with pytest.raises(ConfigError, match="max_length=3 does not go with a spool"):
            node.queue("orders", spool=True, max_length=3)  # type: ignore[call-overload]
    with MirroredQueue("parts", path=tmp_path, node="a") as parts:
        assert parts.shards == 3
        assert sorted(parts.get(timeout=DEADLINE_S).body for _ in range(6)) == [
            b"%d" % number for number in range(6)
        ]
