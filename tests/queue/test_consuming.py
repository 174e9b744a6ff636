"""get, get_many, ack, nack, browse, purge: who has which message when."""

from __future__ import annotations

import gc
import re
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_host import FakeHost, wait_until
from msgspec.structs import replace

import mirrorq
from mirrorq.api import receiver
from mirrorq.api.receiver import CALLS_AHEAD
from mirrorq.api.waits import Waits
from mirrorq.config import Config
from mirrorq.errors import AckRefused, ConfigError, Empty, NoQuorum, QueueDown, ShutDown
from mirrorq.monitoring.status import QueueStatus
from mirrorq.protocol.sessions import Counts

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs" / "three-hosts.md"


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run a function in a thread; its result comes into the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def fill(queue: mirrorq.MirroredQueue, count: int) -> None:
    """Publish bodies 0 to count - 1, confirmed."""
    queue.put_many([b"%d" % number for number in range(count)]).result(10)


def test_messages_come_in_order_and_are_gone_when_acked() -> None:
    """One at a time."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 300)
        for number in range(300):
            message = queue.get(timeout=10)
            assert (message.body, message.sequence) == (b"%d" % number, number + 1)
            assert (message.redelivered, message.delivery_count) == (False, 1)
            settlement = message.ack()
        assert settlement.result(10) is None
        assert host.live == 0


def test_get_many_returns_what_there_is() -> None:
    """1 to count_max as soon as there is one; [] at the time-out."""
    with FakeHost() as host, host.queue() as queue:
        assert queue.get_many(5, timeout=0.05) == []
        fill(queue, 25)
        found: list[mirrorq.Message] = []
        while len(found) < 25:
            some = queue.get_many(10, timeout=10)
            assert 1 <= len(some) <= 10
            found += some
        assert [m.sequence for m in found] == [*range(1, 26)]
        queue.ack_many(found).result(10)
        assert host.live == 0
        assert queue.ack_many([]).result(0) is None
        with pytest.raises(ValueError, match="at least 1"):
            queue.get_many(0)


def test_an_empty_queue_is_empty() -> None:
    """Both as mirrorq.Empty and as queue.Empty; a negative time-out is a mistake."""
    import queue as standard

    with FakeHost() as host, host.queue() as queue:
        with pytest.raises(Empty, match="had no message ready within"):
            queue.get(timeout=0.02)
        with pytest.raises(standard.Empty):
            queue.get_nowait()
        with pytest.raises(standard.Empty):
            queue.get(block=False)
        with pytest.raises(ValueError, match="timeout"):
            queue.get(timeout=-1)
        assert queue.empty()
        fill(queue, 2)
        assert queue.qsize() == 2
        assert not queue.empty()
        assert queue.get_nowait().body == b"0"
        assert queue.get(timeout=0).body == b"1"


def test_a_waiting_get_gets_what_is_published_later() -> None:
    """And nothing is fetched for a call that has given up."""
    with FakeHost() as host, host.queue() as queue:
        thread, results = in_thread(lambda: queue.get(timeout=10).body)
        wait_until(lambda: queue._handle.receiver._demand == 1)
        fill(queue, 3)
        thread.join(10)
        assert results == [b"0"]
        wait_until(lambda: queue.qsize() == 2)


def test_which_node_must_come_back_is_said_whatever_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue without a master is "paused" when the leader is late for a moment."""
    with FakeHost() as host, host.queue() as queue:
        host.down()
        wait_until(lambda: not queue._handle.session.available)  # type: ignore[union-attr]
        for state in ("down", "paused"):
            status = QueueStatus("q", state, warnings=("start a (failed)",))
            monkeypatch.setattr(host, "_queue_status", lambda _, status=status: status)
            with pytest.raises(QueueDown, match=r"has no master: start a \(failed\)"):
                queue.get_nowait()


def test_why_a_get_found_nothing_is_said() -> None:
    """QueueDown and NoQuorum instead of Empty, when that is the reason."""
    with FakeHost() as host, host.queue() as queue:
        host.down()
        wait_until(lambda: not queue._handle.session.available)  # type: ignore[union-attr]
        with pytest.raises(QueueDown):
            queue.get(timeout=0.02)
        with pytest.raises(QueueDown):
            queue.get_nowait()
        with pytest.raises(QueueDown):
            queue.get_many(5, timeout=0.02)
        host.up()
        host.pause()
        with pytest.raises(NoQuorum):
            queue.get(timeout=0.02)
        host.pause(False)
        fill(queue, 1)
        assert queue.get(timeout=10).body == b"0"


def test_a_nacked_message_comes_again_counted() -> None:
    """At its place, before later ones; requeue=False ends it."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 3)
        first = queue.get(timeout=10)
        first.nack().result(10)
        again = queue.get(timeout=10)
        assert (again.sequence, again.redelivered, again.delivery_count) == (1, True, 2)
        again.nack(requeue=False).result(10)
        assert queue.get(timeout=10).sequence == 2
        assert host.live == 2
        with pytest.raises(ConfigError, match="does not come again"):
            again.nack(requeue=False, delay=1)


def test_a_rejected_message_ends() -> None:
    """`reject()` is RabbitMQ's: it does not come again, unless that is asked for."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        queue.get(timeout=10).reject(requeue=True).result(10)
        again = queue.get(timeout=10)
        assert (again.sequence, again.delivery_count) == (1, 2)
        again.reject().result(10)
        assert queue.get(timeout=10).sequence == 2
        assert host.live == 1
        assert isinstance(again.reject().exception(10), AckRefused)


def test_a_message_knows_its_handle() -> None:
    """As it was opened; of one that its user has dropped, another face of the same handle."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        message = queue.get(timeout=10)
        assert message.handle is queue
        assert message.queue == queue.name
        message.handle.ack_many([message]).result(10)
        assert queue.browse()[0].handle is queue
        other = host.queue()
        held = other.get(timeout=10)
        del other
        gc.collect()
        held.handle.ack_many([held]).result(10)
        held.handle.close()
        assert host.live == 0


def test_a_message_as_context_manager() -> None:
    """Acked on a clean exit, given back on an exception, once settled left alone."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        with queue.get(timeout=10) as message:
            assert message.body == b"0"
        wait_until(lambda: host.live == 1)
        with pytest.raises(RuntimeError), queue.get(timeout=10):
            raise RuntimeError
        again = queue.get(timeout=10)
        assert (again.sequence, again.delivery_count) == (2, 2)
        with again:
            again.nack().result(10)
        assert queue.get(timeout=10).delivery_count == 3


def test_an_ack_is_refused_alone() -> None:
    """Two acks travel together; only the one whose message was settled before is refused."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        one, two = queue.get(timeout=10), queue.get(timeout=10)
        one.nack().result(10)
        settlements: list[mirrorq.Settlement] = []
        host.run(lambda: settlements.extend([one.ack(), two.ack()]))
        with pytest.raises(AckRefused, match="message"):
            settlements[0].result(10)
        assert settlements[1].result(10) is None
        assert isinstance(settlements[0].exception(), AckRefused)


def test_refused_acks_are_told_and_the_loop_goes_on() -> None:
    """A worker holds three messages over a failover, and another has two of them when it acks: its
    loop goes on and it hears of those two, however they were acked. Of a nack it does not."""
    told: list[tuple[int, type]] = []

    def on_refused(message: mirrorq.Message, error: mirrorq.AckRefused) -> None:
        told.append((message.sequence, type(error)))

    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        queue.add_ack_listener(on_refused)
        fill(queue, 5)
        held: list[mirrorq.Message] = []
        for message in queue:
            held.append(message)
            if len(held) < 4:
                continue
            if len(held) == 4:
                host.fail_over()
                theirs = [other.get(timeout=10) for _ in range(3)]
                assert [one.sequence for one in theirs] == [1, 2, 3]
                for one in held[:1]:
                    with one:
                        pass
                queue.ack_many(held[1:2])
                assert isinstance(held[2].nack().exception(10), AckRefused)
            with message:
                pass
            if message.sequence == 5:
                break
        wait_until(lambda: len(told) == 2, "two refusals")
        assert sorted(told) == [(1, AckRefused), (2, AckRefused)]
        other.ack_many(theirs).result(10)
        wait_until(lambda: host.live == 0)


def test_the_documented_loop_outlives_a_refused_ack() -> None:
    """The loop of docs/three-hosts.md, as it stands there: while it works on a job its host is cut
    off, and the job goes to another. Its ack is refused, and it goes on."""
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(r"^    for message in jobs:\n(?:     .*\n)+", text, re.MULTILINE)
    done: list[int] = []
    is_working, may_go_on = threading.Event(), threading.Event()

    def work(_: str, sequence: int, **options: bool) -> None:
        is_working.set()
        assert may_go_on.wait(10)
        done.append(sequence)

    with FakeHost() as host, host.queue() as jobs, host.queue() as other:
        refused: list[int] = []
        jobs.add_ack_listener(lambda message, _: refused.append(message.sequence))
        loop = threading.Thread(
            target=exec, args=(textwrap.dedent(code), {"jobs": jobs, "print": work})
        )
        loop.start()
        fill(other, 1)
        assert is_working.wait(10)
        host.fail_over()
        theirs = other.get(timeout=10)
        may_go_on.set()
        wait_until(lambda: refused == [1], "the refusal")
        theirs.ack().result(10)
        fill(other, 1)
        wait_until(lambda: done == [1, 2], "the next job")
        assert loop.is_alive()
        jobs.close()
        loop.join(10)
        assert not loop.is_alive()


def test_a_listener_for_refused_acks_is_a_function() -> None:
    with FakeHost() as host, host.queue() as queue:
        for wrong in (None, "print"):
            with pytest.raises(TypeError):
                queue.add_ack_listener(wrong)  # type: ignore[arg-type]


def test_a_refused_part_of_a_round_refuses_nobody_else() -> None:
    """After a failover one message is somebody else's: its ack is refused, the others' not."""
    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        fill(queue, 3)
        held = [queue.get(timeout=10) for _ in range(3)]
        host.fail_over()
        assert other.get(timeout=10).sequence == 1
        settlements: list[mirrorq.Settlement] = []
        host.run(lambda: settlements.extend([queue.ack_many(held[1:]), held[0].ack()]))
        with pytest.raises(AckRefused, match="the ack of message 1 of queue"):
            settlements[1].result(10)
        assert settlements[0].result(10) is None


def test_an_ack_finds_its_message_in_the_buffer_of_its_own_handle() -> None:
    """The new master handed it out again, to a handle whose user is still at work on it: the
    ack is taken and the message is not returned a second time."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 3)
        held = queue.get(timeout=10)
        host.fail_over()
        host.run(lambda: setattr(queue._handle.receiver._window, "size", 8))
        host._wake(queue._handle.session_id)
        wait_until(lambda: queue._handle.receiver.buffered == 3)
        held.ack().result(10)
        assert host.live == 2
        assert [queue.get(timeout=10).sequence for _ in range(2)] == [2, 3]


def test_a_message_of_another_handle_is_not_acked_here() -> None:
    """ack_many names deliveries of its own session: others are refused at the call."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        fill(one, 1)
        message = one.get(timeout=10)
        with pytest.raises(ValueError, match="this handle"):
            other.ack_many([message])
        message.ack().result(10)


def test_auto_ack_needs_no_ack() -> None:
    """The message is gone soon after it was returned."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        assert queue.get(timeout=10, auto_ack=True).body == b"0"
        wait_until(lambda: host.live == 0)


def test_acks_survive_a_failover() -> None:
    """The delivery is from the old master, the ack goes to the new one, and is not undone."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 3)
        held = [queue.get(timeout=10) for _ in range(2)]
        host.fail_over()
        queue.ack_many(held).result(10)
        assert host.live == 1
        assert queue.get(timeout=10).sequence == 3


def test_what_was_fetched_ahead_is_void_after_a_failover() -> None:
    """It comes again from the new master, marked, and the handle's own copy is not returned."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 200)
        seen = [queue.get(timeout=10) for _ in range(100)]
        queue.ack_many(seen).result(10)
        host.fail_over()
        rest = [queue.get(timeout=10) for _ in range(100)]
        assert [m.sequence for m in rest] == [*range(101, 201)]
        assert {m._chunk.delivery.epoch for m in rest} == {host.epoch}


def test_two_waiting_handles_do_not_take_a_message_from_each_other() -> None:
    """A Recall asks for what nobody waits for: one waiting call gets it, the other goes on."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        calls = [in_thread(lambda q=q: q.get(timeout=10)) for q in (one, other)]
        wait_until(lambda: one._handle.receiver._demand == other._handle.receiver._demand == 1)
        steps = host.steps
        fill(one, 1)
        wait_until(lambda: any(results for _, results in calls), "one of them has it")
        assert host.steps - steps < 50
        fill(one, 1)
        for thread, results in calls:
            thread.join(10)
            assert isinstance(results[0], mirrorq.Message)


def test_what_no_call_takes_goes_back() -> None:
    """A handle that has stopped calling holds nothing: another one gets all the rest, as first
    deliveries."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        fill(one, 500)
        taken = [one.get(timeout=10) for _ in range(200)]
        one.ack_many(taken).result(10)
        wait_until(
            lambda: one._handle.receiver.buffered == 0, "what was fetched ahead has gone back"
        )
        rest = [other.get(timeout=10) for _ in range(300)]
        assert [m.sequence for m in rest] == [*range(201, 501)]
        assert not any(m.redelivered for m in rest)


@pytest.mark.parametrize("kind", ["handle", "adapter"])
def test_what_goes_back_while_it_is_counted_is_counted(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is late reads an answer of before, when a message was here that is with its
    master again: the queue is not empty for that."""
    monkeypatch.setattr(receiver, "IDLE_GIVEBACK_MS", 10**9)
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 2)
        queue.get(timeout=10)
        handle = queue._handle
        host.run(lambda: setattr(handle.receiver._window, "size", 8))
        queue.get(timeout=10)
        fill(queue, 5)
        wait_until(lambda: handle.receiver.buffered == 5, "it is fetched ahead")
        counting, answers = handle.counting, []

        def late_counting(timeout: float = 20) -> Waits[Counts]:
            answers.append((yield from counting(timeout)))
            host.run(lambda: handle.receiver.give_back(handle.session, 0))
            return answers[-1]

        monkeypatch.setattr(handle, "counting", late_counting)
        asked = queue if kind == "handle" else queue.as_queue()
        assert (asked.qsize(), asked.empty()) == (5, False)
        assert answers[0].ready == 0


def test_calls_that_take_many_have_more_fetched_ahead() -> None:
    """What is fetched ahead is bounded by a few calls, not by the prefetch alone, and falls when
    calls ask for little again."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 30_000)
        window = queue._handle.receiver._window
        few = window.size_max
        taken: list[mirrorq.Message] = []
        while len(taken) < 30_000:
            taken += queue.get_many(few, timeout=10)
            assert window.size <= CALLS_AHEAD * few
        assert [message.sequence for message in taken] == [*range(1, 30_001)]
        assert window.size_max == CALLS_AHEAD * few
        queue.ack_many(taken).result(10)
        fill(queue, 1)
        queue.get(timeout=10).ack().result(10)
        wait_until(lambda: window.size_max == few and window.size <= few, "the window falls")


def test_what_goes_back_while_more_is_on_its_way_comes_first_again() -> None:
    """A slow link, a caller who pauses and calls again: the order is the queue's, and nothing
    counts as delivered that no call has returned."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 40)
        taken = [queue.get(timeout=10)]
        host.run(lambda: setattr(queue._handle.receiver._window, "size", 8))
        taken.append(queue.get(timeout=10))
        wait_until(lambda: queue._handle.receiver.buffered == 8, "the buffer is full")
        host.hold_replies()
        taken += queue.get_many(5, timeout=10)
        wait_until(lambda: host.on_way > 0, "more is on its way")
        wait_until(lambda: queue._handle.receiver.buffered == 0, "the rest has gone back")
        host.hold_replies(False)
        while len(taken) < 40:
            taken += queue.get_many(10, timeout=10)
        assert [message.sequence for message in taken] == [*range(1, 41)]
        assert not any(message.redelivered for message in taken)
        queue.ack_many(taken).result(10)


def test_get_nowait_finds_what_another_handle_has_fetched_ahead() -> None:
    """What no call has returned counts as ready."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        fill(one, 20)
        one.ack_many([one.get(timeout=10) for _ in range(3)]).result(10)
        host.run(lambda: setattr(one._handle.receiver._window, "size", 64))
        one.get(timeout=10)
        found = other.get_nowait()
        assert not found.redelivered


def test_a_damaged_delivery_is_not_served() -> None:
    """A frame whose checksum is wrong is dropped, logged, and fetched again."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        damaged: list[int] = []
        fine = host._filled

        def damage(reply: Any) -> Any:
            filled = fine(reply)
            frames_ = getattr(filled.reply, "frames", ())
            if frames_ and not damaged:
                damaged.append(1)
                bad = bytearray(frames_[0])
                bad[-1] ^= 1
                bad[96] ^= 1
                return replace(filled, reply=replace(filled.reply, frames=(bytes(bad),)))
            return filled

        host._filled = damage  # type: ignore[method-assign]
        message = queue.get(timeout=10)
        assert damaged
        assert (message.body, message.redelivered) == (b"0", False)


def test_browse_takes_nothing() -> None:
    """Ready and unacknowledged ones, from a sequence on, bounded."""
    with FakeHost() as host, host.queue() as queue:
        assert queue.browse() == []
        fill(queue, 2500)
        queue.get(timeout=10)
        assert [m.sequence for m in queue.browse(count_max=2500)] == [*range(1, 2501)]
        assert [m.body for m in queue.browse(start=2499)] == [b"2498", b"2499"]
        assert len(queue.browse(start=10, count_max=5)) == 5
        assert queue.browse(start=9999) == []
        with pytest.raises(AckRefused, match="browsed"):
            queue.browse(count_max=1)[0].ack().result(0)


def test_purge_leaves_unacknowledged_messages_alone() -> None:
    """It returns how many it has ended; the held one can still be acked."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 10)
        held = queue.get(timeout=10)
        assert queue.purge() == 9
        assert host.live == 1
        held.ack().result(10)
        assert queue.purge() == 0


def test_iteration_ends_on_close() -> None:
    """`for message in queue` does not ack, and ends without an error."""
    with FakeHost() as host:
        queue = host.queue()
        fill(queue, 3)
        seen: list[bytes] = []
        thread, results = in_thread(lambda: seen.extend(m.body for m in queue))
        wait_until(lambda: len(seen) == 3)
        queue.close()
        thread.join(10)
        assert results == [None]
        assert seen == [b"0", b"1", b"2"]
        with host.queue() as other:
            again = other.get(timeout=10)
            assert (again.sequence, again.redelivered) == (1, True)


def test_shutdown_lets_gets_go_on_until_the_queue_is_empty() -> None:
    """As queue.Queue of 3.13: puts end at once, gets at the end of the queue."""
    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        fill(queue, 2)
        queue.shutdown()
        with pytest.raises(ShutDown):
            queue.put(b"x")
        with pytest.raises(ShutDown):
            queue.put_many([b"x"])
        with pytest.raises(ShutDown):
            queue.put_nowait(b"x")
        assert [queue.get().body, queue.get_nowait().body] == [b"0", b"1"]
        with pytest.raises(ShutDown):
            queue.get()
        with pytest.raises(ShutDown):
            queue.get_nowait()
        other.put(b"of this handle only").result(10)
        assert queue.get().ack().result(10) is None


def test_shutdown_wakes_who_waits() -> None:
    """A get that waits and a put that waits both end with ShutDown."""
    with FakeHost(Config(unconfirmed_count_max=1)) as host, host.queue() as queue:
        getter, got = in_thread(queue.get)
        wait_until(lambda: queue._handle.receiver._demand == 1)
        host.hold_writes()
        queue.put(b"1")
        putter, put = in_thread(lambda: queue.put(b"2"))
        wait_until(lambda: queue._handle.outcomes.waiters == 1)
        queue.shutdown(immediate=True)
        getter.join(10)
        putter.join(10)
        assert isinstance(got[0], ShutDown)
        assert isinstance(put[0], ShutDown)
        host.hold_writes(False)
        assert queue.wait_for_confirms(10)


def test_an_immediate_shutdown_deletes_nothing() -> None:
    """gets end at once; the messages are there for others."""
    with FakeHost() as host, host.queue() as queue, host.queue() as other:
        fill(queue, 5)
        message = queue.get(timeout=10)
        queue.shutdown(immediate=True)
        with pytest.raises(ShutDown):
            queue.get()
        message.ack().result(10)
        assert [other.get(timeout=10).sequence for _ in range(4)] == [2, 3, 4, 5]


def test_a_deleted_queue_ends_its_handles() -> None:
    """Whoever waits is told; nothing hangs."""
    with FakeHost() as host, host.queue() as queue:
        thread, results = in_thread(queue.get)
        wait_until(lambda: queue._handle.receiver._demand == 1)
        queue.delete()
        thread.join(10)
        assert isinstance(results[0], ShutDown)
        with pytest.raises(ShutDown):
            queue.qsize()


def test_closing_gives_back_what_users_hold() -> None:
    """Counted: they may have begun to work on it. What was only fetched goes back uncounted."""
    with FakeHost() as host:
        queue = host.queue()
        fill(queue, 10)
        queue.get(timeout=10)
        queue.close()
        with host.queue() as other:
            found = [other.get(timeout=10) for _ in range(10)]
        assert [(m.sequence, m.delivery_count) for m in found] == [
            (1, 2),
            *((sequence, 1) for sequence in range(2, 11)),
        ]


def test_many_threads_share_a_handle() -> None:
    """Every message is returned to exactly one of them."""
    with FakeHost() as host, host.queue() as queue:
        fill(queue, 400)
        seen: list[int] = []

        def work() -> None:
            while len(seen) < 400:
                try:
                    with queue.get(timeout=0.3) as message:
                        seen.append(message.sequence)
                except Empty:
                    pass

        threads = [in_thread(work)[0] for _ in range(4)]
        for thread in threads:
            thread.join(20)
        assert sorted(seen) == [*range(1, 401)]
        wait_until(lambda: host.live == 0)


def test_after_a_fork_the_child_is_told() -> None:
    """Every call in the child names both processes; the parent's handle goes on."""
    import os

    with FakeHost() as host, host.queue() as queue:
        fill(queue, 1)
        message = queue.get(timeout=10)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            lines = []
            for call in (lambda: queue.put(b"x"), queue.get_nowait, message.ack):
                try:
                    call()
                    lines.append("no error")
                except mirrorq.MirrorQError as error:
                    lines.append(str(error))
            queue.close()
            os.write(writer, "\n".join(lines).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = pipe.read().splitlines()
        os.waitpid(child, 0)
        assert len(told) == 3
        assert all(str(os.getpid()) in line and str(child) in line for line in told)
        message.ack().result(10)


def test_purge_ends_what_other_handles_have_fetched_ahead() -> None:
    """A handle that got as fast as messages came has more of them than its calls have returned;
    those are ready. What a call has returned is not."""
    with FakeHost() as host, host.queue() as one, host.queue() as other:
        one.put_many([b"%d" % n for n in range(2000)]).result(10)
        held = 0
        while not other._handle.receiver.buffered:
            assert other.get(timeout=10)
            held += 1
        assert one.purge() == 2000 - held
        assert other._handle.receiver.buffered == 0
        assert one.qsize() == 0
        assert len(one.browse(count_max=3000)) == held
