"""What a dashboard remembers: rates, changes of masters, and bounds."""

from __future__ import annotations

from mirrorq.dashboard.history import CHANGES_MAX, POINTS_MAX, QUEUES_MAX, History
from mirrorq.monitoring.status import QueueStatus


def queue(name: str = "orders", master: str | None = "a", **more: object) -> QueueStatus:
    state = "running" if master else "down"
    return QueueStatus(name, state, master, **more)  # type: ignore[arg-type]


def last_point(history: History, name: str = "orders") -> tuple[float, float, float]:
    """(published, delivered, acked) a second at the last look."""
    points = {status.name: points for status, points in history.queues()}[name]
    return points[-1].published, points[-1].delivered, points[-1].acked


def test_rates_are_the_growth_of_totals() -> None:
    """By the time between two looks, whatever it is; the first look knows none."""
    history = History()
    history.note(1000, [queue(messages_published=100)])
    assert last_point(history) == (0, 0, 0)
    totals = {"messages_published": 150, "messages_delivered": 20, "messages_acknowledged": 10}
    history.note(3000, [queue(**totals)])
    assert last_point(history) == (25, 10, 5)


def test_totals_that_begin_anew_are_no_rate() -> None:
    """Another master counts for itself, and a restarted one from 0: never below 0, no peak."""
    history = History()
    history.note(1000, [queue(messages_published=100)])
    history.note(2000, [queue(master="b", messages_published=5_000_000)])
    assert last_point(history) == (0, 0, 0)
    history.note(3000, [queue(master="b", messages_published=10)])
    assert last_point(history) == (0, 0, 0)
    history.note(4000, [queue(master="b", messages_published=30)])
    assert last_point(history)[0] == 20


def test_changes_of_masters() -> None:
    """Who is no master for a while and comes back has not changed; who follows one has."""
    history = History()
    history.note(1000, [queue(epoch=1)])
    history.note(2000, [queue(master=None, epoch=1)])
    history.note(3000, [queue(epoch=2)])
    assert list(history.changes) == []
    history.note(4000, [queue(master=None, epoch=2)])
    history.note(5000, [queue(master="b", epoch=3), queue("new", "c")])
    (change,) = history.changes
    assert (change.at_ms, change.queue, change.before, change.after, change.epoch) == (
        5000,
        "orders",
        "a",
        "b",
        3,
    )


def test_everything_is_bounded() -> None:
    """However long it looks and however much there is; what needs somebody is never left out."""
    history = History()
    many = [queue(f"q{number:04}") for number in range(QUEUES_MAX + 50)]
    troubled = queue("zz", None)
    for look in range(2):
        history.note(1000 * look, [*many, troubled])
    names = [status.name for status, _ in history.queues()]
    assert (len(names), history.queue_count, names[0]) == (QUEUES_MAX, QUEUES_MAX + 51, "zz")
    for look in range(POINTS_MAX + CHANGES_MAX + 20):
        history.note(10_000 + look, [queue(master="ab"[look % 2])])
    assert [len(points) for _, points in history.queues()] == [POINTS_MAX]
    assert (len(history.times_ms), len(history.changes)) == (POINTS_MAX, CHANGES_MAX)
    history.note(99_999, [])
    assert history.queues() == []
