"""What is on the way between a client and its entry node: windows, turns, shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.node.gateway.credit import ClientSubscription
from mirrorq.protocol.sessions import Deliver
from mirrorq.transport.flow_control import LOST_WINDOWS, Outflow, Parts, Window


def test_a_window_opens_as_the_other_side_reads() -> None:
    """One message of any size goes while it is open; what has come opens it again."""
    window = Window(100)
    assert window.is_open
    window.on_sent(1000)
    assert (window.is_open, window.on_way, window.is_overrun) == (False, 1000, True)
    window.on_told(901)
    assert (window.is_open, window.on_way, window.is_overrun) == (True, 99, False)


def test_reports_are_due_after_a_quarter() -> None:
    window = Window(100)
    window.on_received(24)
    assert not window.is_report_due
    window.on_received(1)
    assert window.is_report_due
    assert window.report() == 25
    assert not window.is_report_due


@given(
    st.lists(st.tuples(st.sampled_from(["on_sent", "on_told", "on_lost"]), st.integers(0, 2**62)))
)
def test_no_word_of_the_other_side_makes_nonsense(calls: list[tuple[str, int]]) -> None:
    """What is on the way is never less than nothing, and what was told is never undone."""
    window = Window(1000)
    for name, size in calls:
        before = window._acknowledged
        getattr(window, name)(size)
        assert window.on_way >= 0
        assert window._acknowledged >= before
        assert window.is_overrun == (window.on_way >= LOST_WINDOWS * 1000)


def test_handles_take_turns() -> None:
    """A handle that puts much keeps nobody waiting for more than its turn, in order each."""
    window = Window(10)
    sent: list[bytes] = []

    def send(parts: Parts) -> None:
        sent.append(bytes(parts[0]))
        window.on_sent(10)

    flow = Outflow(window, send)
    for number in range(3):
        flow.offer(1, [b"a%d" % number])
    for number in range(2):
        flow.offer(2, [b"b%d" % number])
    assert (sent, flow.count) == ([b"a0"], 4)
    for number in range(1, 5):
        window.on_told(number * 10)
        flow.continue_sending()
    assert sent == [b"a0", b"a1", b"b0", b"a2", b"b1"]
    flow.offer(3, [b"c0"])
    flow.forget(3)
    window.on_told(50)
    flow.continue_sending()
    assert (flow.count, sent[5:]) == (0, [])


def test_a_seat_is_granted_its_share_again_and_again() -> None:
    """Credit passes with a share of the room; more when half of it has come."""
    seat = ClientSubscription(7)
    assert not seat.is_due
    seat.total = 50
    assert seat.is_due
    credit = seat.credit(800, 2)
    assert (credit.number, credit.total, credit.size) == (7, 50, 100)
    assert not seat.is_due
    seat.on_deliver(Deliver(7, (), (bytes(49),)))
    assert not seat.is_due
    seat.on_deliver(Deliver(7, (), (bytes(1),)))
    assert seat.is_due
    assert seat.credit(3, 1000).size == 1


def test_a_seat_that_is_halted_asks_for_nothing_until_the_client_does() -> None:
    """What still comes on it is no reason to grant it more."""
    seat = ClientSubscription(7, total=50)
    seat.credit(800, 1)
    halt = seat.halt()
    assert (halt.number, halt.total, halt.size) == (7, 0, 0)
    seat.on_deliver(Deliver(7, (), (bytes(1000),)))
    assert not seat.is_due
    seat.total = 60
    assert seat.is_due
    assert seat.credit(800, 1).total == 60
