"""Clients and nodes that die: real processes on loopback."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest
from running import NodeProcesses, Script, in_sync, is_empty
from tests.kit import until

from conftest import Connecting
from mirrorq.api.message import Message
from mirrorq.api.queue import MirroredQueue
from mirrorq.errors import AckRefused, NoQuorum

pytestmark = pytest.mark.soak

COUNT = 20_000


def drained(queue: MirroredQueue, count: int) -> list[Message]:
    """Take and ack until `count` different messages have come and the queue is empty."""
    taken: dict[bytes, Message] = {}
    while len(taken) < count:
        messages = queue.get_many(1000, timeout=30)
        assert messages, f"{count - len(taken)} messages never came"
        taken.update((message.body, message) for message in messages)
        # Refused when there was another failover: then they come again.
        with suppress(AckRefused):
            queue.ack_many(messages).result(30)
    until(lambda: is_empty(queue))
    return list(taken.values())


@pytest.mark.parametrize(
    ("master", "how"),
    [("a", signal.SIGKILL), ("b", signal.SIGKILL), ("b", signal.SIGSTOP)],
)
def test_the_entry_node_is_gone(
    processes: NodeProcesses, connecting: Connecting, master: str, how: signal.Signals
) -> None:
    """Master or mirror, dead or frozen: the client moves on, and every put is stored once."""
    peers = processes.peers
    declarer = connecting(peers[master])
    declarer.queue("orders").status()
    declarer.close()
    client = connecting(peers["a"], peers["b"], peers["c"])
    events: list[str] = []
    client.add_listener(lambda notice: events.append(notice.kind))
    orders = client.queue("orders")
    in_sync(orders)
    client.transfer_master("orders", master)
    assert in_sync(orders).master == master
    puts = [orders.put(b"%d" % number) for number in range(COUNT // 2)]
    until(puts[0].done)
    processes.scripts["a"].process.send_signal(how)
    puts += [orders.put(b"%d" % number) for number in range(COUNT // 2, COUNT)]
    sequences = [put.result(30) for put in puts]
    assert sequences == sorted(set(sequences))
    assert client.entry_node in ("b", "c")
    until(lambda: {"disconnected", "connected"} <= set(events))
    if master == "a":
        until(lambda: "new master" in events)
    messages = drained(orders, COUNT)
    assert sorted(int(message.body) for message in messages) == list(range(COUNT))
    assert sorted(message.sequence for message in messages) == sequences


def test_settlements_are_resolved(processes: NodeProcesses, connecting: Connecting) -> None:
    """Acks on the way when the entry node dies are taken or refused; refused ones come again."""
    client = connecting(*processes.endpoints)
    orders = client.queue("orders")
    orders.put_many([b"%d" % number for number in range(1000)]).result(30)
    held = orders.get_many(1000, timeout=30)
    processes.kill_entry_of(client)
    settlements = [(message, message.ack()) for message in held]
    taken = []
    for message, settlement in settlements:
        try:
            settlement.result(30)
            taken.append(message.sequence)
        except AckRefused:
            assert message.sequence
    rest = drained(orders, 1000 - len(taken)) if len(taken) < 1000 else []
    assert not {message.sequence for message in rest} & set(taken)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_client_gives_back(
    processes: NodeProcesses, connecting: Connecting, how: signal.Signals
) -> None:
    """What a killed or silent client held goes to another, in order and marked, from each node."""
    peers = processes.peers
    orders = connecting(peers["a"]).queue("orders")
    orders.put_many([b"1", b"2", b"3"]).result(30)
    for entry in peers.values():
        consumer = Script("consumer_process.py", entry, "orders", "3")
        try:
            assert consumer.line() == "held 3\n"
            consumer.process.send_signal(how)
            messages: dict[bytes, Message] = {}
            while len(messages) < 3:
                # Of a busy machine another node may be the master meanwhile: then some come twice.
                message = orders.get(timeout=30)
                messages[message.body] = message
            assert list(messages) == [b"1", b"2", b"3"]
            assert all(message.redelivered for message in messages.values())
            for message in messages.values():
                with suppress(AckRefused):
                    message.nack().result(30)
        finally:
            consumer.kill()


def test_a_client_that_was_only_late_finds_its_auto_delete_queue(
    processes: NodeProcesses, connecting: Connecting
) -> None:
    """Its entry node has taken it for gone, and the queue has no consumer: it is there, with all
    that has come meanwhile, when the client runs again."""
    entry, other = list(processes.peers.values())[:2]
    client = connecting(other)
    bystander = Script("bystander_process.py", entry, "answers")
    try:
        assert bystander.line() == "consumes\n"
        answers = client.queue("answers", auto_delete=True)
        until(lambda: answers.status().consumers == 1)
        bystander.process.send_signal(signal.SIGSTOP)
        until(lambda: answers.status().consumers == 0)
        answers.put(b"late").result(30)
        bystander.process.send_signal(signal.SIGCONT)
        assert bystander.line() == "late\n"
        bystander.end()
        until(lambda: "answers" not in [queue.name for queue in client.queues()])
    finally:
        bystander.kill()


def test_questions_go_on(processes: NodeProcesses, connecting: Connecting) -> None:
    """A declaration goes on at the next entry node; without a majority it ends with NoQuorum."""
    client = connecting(*processes.endpoints)
    client.wait_ready(30)
    processes.kill_entry_of(client)
    assert client.queue("orders").put(b"one").result(30) == 1
    until(lambda: sum(node.alive for node in client.nodes()) == 2)
    processes.kill_entry_of(client)
    with pytest.raises(NoQuorum):
        client.queue("bills", timeout=1)
