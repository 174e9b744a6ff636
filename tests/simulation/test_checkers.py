"""Each checker can fail: its input with one violation in it, and the sentence that names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from harness import chain, checkers, fan
from harness.bulk import joined
from harness.onlooker import absent
from harness.workload import Attempt, Dispatch, Journal, PurgeCall
from mirrorq.api.completion import Outcomes
from mirrorq.api.confirmation import Confirmation
from mirrorq.errors import ConfirmUnknown, MirrorQError, NotConfirmed
from mirrorq.protocol.commands import ClearPolicy, SetPolicy
from mirrorq.protocol.identities import StoreId
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.sessions import Confirmed, Deliver, Delivery, SessionReply
from mirrorq.replication.state.queue_state import QueueState

from .world import World


def journal() -> Journal:
    """Three messages, confirmed at 1 to 3, delivered once each, acked."""
    made = Journal()
    for number in (1, 2, 3):
        body = b"p/%d" % number
        made.attempts[body] = Attempt(body, "acknowledged", number, put_ms=number)
        made.deliveries.append(Dispatch(number, body, 1, 10 + number, (1, number), "c", "ok"))
        made.resolved_ms[number] = 100
    return made


@pytest.fixture
def made() -> Journal:
    return journal()


def again(made: Journal, **changes: object) -> None:
    """The second message is delivered once more, as a redelivery unless it is said otherwise."""
    first = made.deliveries[1]
    made.deliveries.append(evolve(first, count=2, delivery=(1, 9), **changes))  # type: ignore[arg-type]


def drop(made: Journal) -> None:
    del made.deliveries[1]


def refuse(made: Journal) -> None:
    made.attempts[b"p/2"].state = "refused"


def forge(made: Journal) -> None:
    made.deliveries.append(Dispatch(4, b"nobody's", 1, 20, (1, 4), "c"))


def misplace(made: Journal) -> None:
    made.attempts[b"p/2"].sequence = 7


def move(made: Journal) -> None:
    again(made, sequence=9)


def reuse(made: Journal) -> None:
    again(made, body=b"p/3")


def repeat_first(made: Journal) -> None:
    again(made)
    made.deliveries[-1].count = 1


def undercount(made: Journal) -> None:
    made.deliveries[1].count = 2
    again(made)


def undo(made: Journal) -> None:
    again(made, time_ms=101)


def leave_open(made: Journal) -> None:
    made.attempts[b"p/2"].state = "open"


def leave_ack_open(made: Journal) -> None:
    made.deliveries[1].acked = "open"


def refuse_ack(made: Journal) -> None:
    made.deliveries[1].acked = "refused"


def revive(made: Journal) -> None:
    made.ended = {2: ("expired", 11)}


VIOLATIONS: list[tuple[Callable[[Journal], list[str]], Callable[[Journal], None]]] = [
    (checkers.lost, drop),
    (checkers.unexpected, refuse),
    (checkers.unexpected, forge),
    (checkers.unexpected, misplace),
    (checkers.duplicated, move),
    (checkers.duplicated, reuse),
    (checkers.duplicated, repeat_first),
    (checkers.undercounted, undercount),
    (checkers.undone_acks, undo),
    (checkers.misrefused, refuse_ack),
    (checkers.revived, revive),
    (checkers.unresolved, leave_open),
    (checkers.unresolved, leave_ack_open),
]


@pytest.mark.parametrize(("checker", "violate"), VIOLATIONS)
def test_a_checker_sees_its_violation(
    checker: Callable[[Journal], list[str]], violate: Callable[[Journal], None], made: Journal
) -> None:
    """It is silent about the good journal and not about the spoiled one."""
    assert checkers.all_of_journal(made) == []
    violate(made)
    assert checker(made)
    assert set(checker(made)) <= set(checkers.all_of_journal(made))


def test_a_redelivery_is_no_violation(made: Journal) -> None:
    again(made, time_ms=50)
    assert checkers.all_of_journal(made) == []


def test_a_refused_ack_is_right_where_its_message_comes_again_or_ended_otherwise() -> None:
    """Handed out before does not count: the one that was refused is to be followed by another."""
    made = journal()
    refuse_ack(made)
    made.deliveries[1].delivery = (2, 1)
    again(made, time_ms=5, acked="ok")
    assert len(checkers.misrefused(made)) == 1
    made.deliveries[-1].delivery = (2, 2)
    assert checkers.misrefused(made) == []
    made.deliveries.pop()
    assert len(checkers.misrefused(made)) == 1
    made.ended = {2: ("acked", 20)}
    assert len(checkers.misrefused(made)) == 1
    made.ended = {2: ("expired", 20)}
    assert checkers.misrefused(made) == []
    made.ended, made.unclean_ms = None, [5]
    assert len(checkers.misrefused(made)) == 1
    made.unclean_ms = [150]
    assert checkers.misrefused(made) == []


def test_a_purge_excuses_only_what_was_put_before_its_end(made: Journal) -> None:
    drop(made)
    made.purges.append(PurgeCall(ended_ms=1, count=1))
    assert len(checkers.lost(made)) == 1
    made.purges.append(PurgeCall(ended_ms=2, count=1))
    assert checkers.lost(made) == []
    made.purges[:] = [PurgeCall()]
    assert checkers.lost(made) == []


def test_only_an_op_excuses_a_loss_where_ops_were_seen(made: Journal) -> None:
    """Expired, dropped, purged: by the ops, message by message, however many purges there were."""
    drop(made)
    made.purges.append(PurgeCall(ended_ms=9, count=1))
    made.ended = {1: ("acked", 20), 3: ("dropped", 20)}
    assert len(checkers.lost(made)) == 1
    made.ended[2] = ("acked", 20)
    assert len(checkers.lost(made)) == 1
    made.ended[2] = ("expired", 20)
    assert checkers.lost(made) == []


def test_dead_letters_that_are_missing_or_from_nowhere_are_seen(world: World) -> None:
    """What stands in the queue for them is exactly what ended to be sent on."""
    bodies = world.put("b", 3)
    made = Journal(ended={1: ("sent on", 5), 2: ("sent on", 5), 3: ("sent on", 5)})
    for sequence, body in enumerate(bodies, 1):
        made.attempts[body] = Attempt(body, "acknowledged", sequence)
    assert checkers.unsent([made], world.cluster, world.queue_id) == []
    made.ended = {1: ("acked", 5), 2: ("sent on", 5), 3: ("sent on", 5)}
    assert len(checkers.unsent([made], world.cluster, world.queue_id)) == 1
    made.attempts.pop(bodies[0])
    made.attempts[b"p/9"] = Attempt(b"p/9", "acknowledged", 9)
    made.ended[9] = ("sent on", 5)
    assert len(checkers.unsent([made], world.cluster, world.queue_id)) == 2


def test_dead_letters_are_missed_of_deleted_queues_too(world: World) -> None:
    """Deleting waits for the outbox. Not where all copies of a queue without durability were
    down, nor for a transient message that came before all copies of the target were down."""
    made = Journal(ended={1: ("sent on", 5)}, is_deleted=True)
    attempt = made.attempts[b"p/1"] = Attempt(b"p/1", "acknowledged", 1)
    assert len(checkers.unsent([made], world.cluster, world.queue_id)) == 1
    made.durable = False
    assert checkers.unsent([made], world.cluster, world.queue_id) == []
    made.durable, attempt.persistent = True, False
    assert len(checkers.unsent([made], world.cluster, world.queue_id)) == 1
    world.cluster.onlooker.colds[world.queue_id] = 4
    assert len(checkers.unsent([made], world.cluster, world.queue_id)) == 1
    world.cluster.onlooker.colds[world.queue_id] = 5
    assert checkers.unsent([made], world.cluster, world.queue_id) == []


def test_what_an_unclean_promotion_lost_is_missed_unless_it_was_counted(made: Journal) -> None:
    """Only what was put before it, and no more than its master says."""
    drop(made)
    assert len(checkers.uncounted(made, 0)) == 1
    assert checkers.uncounted(made, 1) == []
    made.unclean_ms = [1]
    assert len(checkers.lost(made)) == 1
    assert len(checkers.uncounted(made, 0)) == 1
    made.unclean_ms = [2 + checkers.UNREPORTED_MS]
    assert checkers.uncounted(made, 0) == []
    made.unclean_ms = [3 + checkers.UNREPORTED_MS]
    assert len(checkers.uncounted(made, 0)) == 1
    made.reported_ms = [2 + checkers.UNREPORTED_MS]
    assert checkers.uncounted(made, 0) == []
    made.reported_ms = []
    made.unclean_ms = [2]
    assert checkers.lost(made) == []
    made.ended = {2: ("expired", 3)}
    assert checkers.uncounted(made, 0) == []


@pytest.mark.parametrize(
    ("checker", "violate"),
    [
        (checkers.duplicated, move),
        (checkers.undercounted, undercount),
        (checkers.undone_acks, undo),
        (checkers.revived, revive),
    ],
)
def test_an_unclean_promotion_excuses_what_it_comes_between(
    checker: Callable[[Journal], list[str]], violate: Callable[[Journal], None], made: Journal
) -> None:
    """Acks, counts and places of a lost past are lost with it; what is of one past is judged."""
    violate(made)
    last = made.deliveries[-1 if checker is not checkers.revived else 1]
    last.time_ms = 200
    last.count = max(last.count, 2)
    assert checker(made)
    made.unclean_ms = [5]
    assert checker(made)
    made.unclean_ms = [150]
    assert checker(made) == []


def test_dead_letters_that_were_taken_have_arrived(world: World) -> None:
    """Where somebody consumes them they need not stand there, and come once."""
    made = Journal(ended={1: ("sent on", 5)})
    made.attempts[b"p/1"] = Attempt(b"p/1", "acknowledged", 1)
    taken = Journal()
    assert len(checkers.unsent([made], world.cluster, world.queue_id, taken)) == 1
    taken.deliveries.append(Dispatch(7, b"p/1", 1, 20, (1, 1), "c"))
    taken.deliveries.append(Dispatch(7, b"p/1", 2, 30, (1, 2), "c"))
    assert checkers.unsent([made], world.cluster, world.queue_id, taken) == []
    taken.deliveries.append(Dispatch(8, b"p/1", 1, 40, (1, 3), "c"))
    assert len(checkers.unsent([made], world.cluster, world.queue_id, taken)) == 1


def results() -> Journal:
    """Of the three messages of `journal`, each once."""
    made = Journal()
    for number in (1, 2, 3):
        body = chain.DONE + b"p/%d" % number
        made.deliveries.append(Dispatch(number, body, 1, 20 + number, (1, number), "c", "ok"))
    return made


def test_a_result_that_is_missing_doubled_or_too_early_is_seen() -> None:
    source, found = journal(), results()
    assert chain.unpaired(source, found) == []
    gone = found.deliveries.pop()
    assert len(chain.unpaired(source, found)) == 1
    found.deliveries += [gone, evolve(gone, sequence=9)]
    assert len(chain.unpaired(source, found)) == 1
    found = results()
    again(source, time_ms=22)
    assert chain.unpaired(source, found) == []
    again(source, time_ms=23)
    assert len(chain.unpaired(source, found)) == 1
    source = journal()
    del source.attempts[b"p/2"], source.deliveries[1]
    assert len(chain.unpaired(source, found)) == 1


@pytest.mark.parametrize("state", ["acknowledged", "refused", "unknown"])
def test_an_outcome_that_is_not_that_of_all_queues_is_seen(state: str) -> None:
    one, other = journal(), journal()
    other.attempts[b"p/2"].state = state
    outcomes = Outcomes()

    def found(value: object, error: MirrorQError | None, *, is_done: bool = True) -> list[str]:
        confirmation = Confirmation(outcomes)
        if is_done:
            confirmation._finish(value, error)
        return fan.uneven([fan.Publish(b"p/2", (one, other), ("q1", "q2"), confirmation)])

    told: dict[str, list[str]] = {
        "acknowledged": found({"q1": 2, "q2": 2}, None),
        "refused": found(None, NotConfirmed("no")),
        "unknown": found(None, ConfirmUnknown("?")),
    }
    assert {known: bool(wrong) for known, wrong in told.items()} == {
        known: known != state for known in told
    }
    assert found({"q1": 2}, None)
    assert found(None, None, is_done=False)


def test_a_message_before_its_time_is_seen(made: Journal) -> None:
    """The more clocks may run apart, the earlier it may seem to come."""
    made.attempts[b"p/2"].delay_ms = 10_000
    made.attempts[b"p/2"].put_ms = put_ms = 1_000_000
    made.deliveries[1].time_ms = put_ms + 10_000
    assert checkers.early(made, 0) == []
    made.deliveries[1].time_ms = put_ms + 9000
    assert len(checkers.early(made, 0)) == 1
    assert len(checkers.early(made, 40)) == 1
    assert checkers.early(made, 100) == []


def test_a_cold_promotion_excuses_transient_messages_put_before_it(made: Journal) -> None:
    drop(made)
    made.attempts[b"p/2"].persistent = False
    assert len(checkers.lost(made)) == 1
    made.cold_ms = 1
    assert len(checkers.lost(made)) == 1
    made.cold_ms = 2
    assert checkers.lost(made) == []


def test_a_queue_that_leaves_its_limit_is_seen(world: World) -> None:
    """Not one that was longer as the limit came: one that has kept it once."""
    watch = checkers.LimitWatch(world.cluster)
    world.put("b", 5)
    limit(world, 3)
    watch.look([world.queue_id])
    assert watch.wrong == []
    limit(world, 10)
    watch.look([world.queue_id])
    master = world.cluster.engine("a").replicas[world.queue_id].master
    assert master is not None
    master.dispatch.ready.levels.add(0, 100, 120)
    watch.look([world.queue_id])
    assert watch.wrong[0].startswith("overfull: 26 messages")


def test_a_limit_that_went_and_came_back_is_a_new_one(world: World) -> None:
    """The queue has grown while it had none."""
    watch = checkers.LimitWatch(world.cluster)
    limit(world, 3)
    watch.look([world.queue_id])
    world.cluster.ask("a", ClearPolicy("p"))
    world.cluster.run(100)
    world.put("b", 5)
    watch.look([world.queue_id])
    limit(world, 3)
    watch.look([world.queue_id])
    assert watch.wrong == []


def limit(world: World, length: int) -> None:
    policy = parse("p", "", {"max-length": length, "overflow": "reject-publish"})
    world.cluster.ask("a", SetPolicy("p", to_text(policy)))
    world.cluster.run(100)


def test_the_tally_has_jepsens_words(made: Journal) -> None:
    drop(made)
    made.attempts[b"p/3"].state = "unknown"
    made.attempts[b"p/4"] = Attempt(b"p/4", "refused")
    found = checkers.tally(made)
    assert (found.attempts, found.acknowledged, found.ok, found.lost) == (4, 2, 1, 1)
    assert (found.unknown, found.recovered, found.refused, found.purged) == (1, 1, 1, 0)


def drained_world() -> World:
    world = World()
    world.put("b", 5)
    world.check()
    return world


def test_copies_that_differ_are_seen() -> None:
    world = drained_world()
    assert checkers.unequal(world.cluster, world.queue_id) == []
    world.cluster.engine("b").replicas[world.queue_id].state.next_sequence += 1
    assert checkers.unequal(world.cluster, world.queue_id)


@pytest.mark.parametrize("left", ["frame", "op", "log", "state"])
def test_what_a_drain_leaves_behind_is_seen(
    left: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame or an op on a disk, a log in memory, a state that does not shrink."""
    world.put("b", 5)
    frame = next(iter(world.cluster.nodes["c"].disk.queues[world.queue_id].frames.values()))
    world.check()
    files = world.cluster.nodes["c"].disk.queues[world.queue_id]
    replica = world.cluster.engine("c").replicas[world.queue_id]
    assert checkers.undrained(world.cluster, world.queue_id) == []
    if left == "frame":
        files.frames[1] = frame
    elif left == "op":
        files.ops[1] = frame
    elif left == "log":
        replica.ring.log.append(frame)
    else:
        replica.state.history = [(epoch, epoch) for epoch in range(100)]
        monkeypatch.setattr(QueueState, "encode", lambda _: bytes(10_000))
    assert checkers.undrained(world.cluster, world.queue_id)


def test_what_a_deletion_leaves_behind_is_seen() -> None:
    world = drained_world()
    assert len(checkers.undeleted(world.cluster, world.queue_id)) == 6


def test_two_orders_are_seen(world: World) -> None:
    """A copy whose log has another op at an lsn than a copy that applied it before."""
    world.put("b", 1)
    onlooker = world.cluster.onlooker
    replica = world.cluster.engine("a").replicas[world.queue_id]
    copy = onlooker._copies["c", world.queue_id]
    copy.applied = replica.state.applied - 1
    copy.digests[replica.state.applied] = 1
    onlooker.on_step("c", [], {world.queue_id: replica}, [world.queue_id], lambda _: False, 0)
    assert onlooker.wrong[0].startswith("two orders")


def test_a_wrong_order_of_deliveries_is_seen(world: World) -> None:
    """What is behind is handed out first, for the first time in this term."""
    world.put("b", 5)
    onlooker = world.cluster.onlooker
    replica = world.cluster.engine("a").replicas[world.queue_id]
    assert replica.master is not None
    master_epoch, session = replica.master.master_epoch, world.cluster.new_session("b")
    for number, place in ((1, 4), (2, 2)):
        pieces = (Delivery(master_epoch, number, place, place, 1),)
        reply = SessionReply(world.queue_id, master_epoch, session, 1, number, Deliver(1, pieces))
        assert onlooker.misordered() == []
        onlooker.on_reply("a", reply, replica, world.cluster._disk_of, world.cluster._copy_of)
    assert len(onlooker.misordered()) == 1


def test_two_masters_and_an_early_confirm_are_seen(world: World) -> None:
    """A confirm of a second node in an epoch, and one whose message is on no disk."""
    world.put("b", 1)
    onlooker = world.cluster.onlooker
    replica = world.cluster.engine("a").replicas[world.queue_id]
    session = world.cluster.new_session("b")
    assert replica.ring.view is not None
    reply = SessionReply(
        world.queue_id, replica.ring.view.epoch, session, 1, 1, Confirmed(1, ((1, 1, 99),))
    )
    onlooker.on_reply("a", reply, replica, world.cluster._disk_of, world.cluster._copy_of)
    assert onlooker.wrong[0].startswith("confirmed too early")
    onlooker.wrong.clear()
    onlooker.on_reply("c", reply, replica, world.cluster._disk_of, world.cluster._copy_of)
    assert onlooker.wrong[0].startswith("two masters")


def test_a_copy_that_began_anew_owes_nothing_to_an_earlier_view_only(world: World) -> None:
    """It lacks what is confirmed in the view in which it began anew: that is seen."""
    world.put("b", 1)
    onlooker, disk = world.cluster.onlooker, world.cluster.nodes["c"].disk
    replica = world.cluster.engine("a").replicas[world.queue_id]
    view = replica.ring.view
    assert view is not None
    del disk.queues[world.queue_id]
    session = world.cluster.new_session("b")
    confirmed = Confirmed(1, ((1, 1, 1),))
    reply = SessionReply(world.queue_id, view.epoch, session, 1, 1, confirmed)
    for later, count in ((0, 1), (1, 0)):
        onlooker._begun_anew[StoreId("c", disk.store), world.queue_id] = view.epoch + later
        onlooker.wrong.clear()
        onlooker.on_reply("a", reply, replica, world.cluster._disk_of, world.cluster._copy_of)
        assert len(onlooker.wrong) == count


def test_a_hole_in_the_frames_of_a_batch_is_seen(world: World) -> None:
    """Of messages confirmed together each is looked for: one frame is missing on one disk."""
    world.put("b", 30)
    files = world.cluster.nodes["c"].disk.queues[world.queue_id]
    assert not absent(files, 1, 30)
    frame = files.frames.pop(sorted(files.frames)[1])
    first, last = frame.header.first_sequence, frame.header.last_sequence
    assert absent(files, 1, 30) == list(range(first, last + 1))


def test_deliveries_of_neighbours_are_one_name() -> None:
    """Of one number and count, without a gap."""
    pieces = [(1, 7, 3, 1), (1, 7, 4, 1), (1, 7, 6, 1), (1, 8, 7, 2), (2, 8, 8, 2)]
    names = [Delivery(epoch, number, s, s, count) for epoch, number, s, count in pieces]
    assert [(one.first, one.last) for one in joined(names)] == [(3, 4), (6, 6), (7, 7), (8, 8)]
