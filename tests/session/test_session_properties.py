"""Any order of calls, losses and failovers: P3 and P4 as two handles see them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from world import User, World, started

ACTIONS = (
    "put",
    "put_whole",
    "want",
    "take",
    "ack",
    "nack",
    "give_back",
    "step",
    "carry_requests",
    "carry_replies",
    "write",
    "break_link",
    "lose_requests",
    "lose_replies",
    "fail_over",
    "down",
    "wait",
)

STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1), st.integers(1, 4)), max_size=60
)


class Watch:
    """What has been promised so far, checked at each step."""

    def __init__(self, users: list[User]) -> None:
        self.users = users
        self.seen = 0
        self.acked: set[int] = set()

    def check(self) -> None:
        """An ack that has resolved is never undone."""
        taken = [message for user in self.users for message in user.taken]
        for message in taken:
            if message.settled == "ok" and message.kind == "ack":
                self.acked.add(message.sequence)

    def took(self, sequences: list[int]) -> None:
        """Messages that calls have just returned."""
        assert not self.acked.intersection(sequences)


def act(world: World, watch: Watch, action: str, user: User, count: int) -> None:
    """One thing that happens."""
    match action:
        case "put":
            user.put(count)
        case "put_whole":
            user.put(count, whole=True)
        case "want":
            user.demand = count
        case "take":
            watch.took([message.sequence for message in user.take(count)])
        case "ack" | "nack":
            unsettled = [message for message in user.taken if not message.settled]
            if unsettled:
                user.settle(action, unsettled[:count])
        case "give_back":
            user.give_back()
        case "step":
            user.step()
        case "carry_requests":
            world.carry_requests(user, count)
        case "carry_replies":
            world.carry_replies(user, count)
        case "write":
            world.write()
        case "break_link":
            world.break_link(user)
        case "lose_requests":
            user.to_master.clear()
        case "lose_replies":
            user.to_user.clear()
        case "fail_over":
            world.kill()
            world.serve()
        case "down":
            world.kill()
        case "wait":
            world.now_ms += 400 * count


def drain(world: World, watch: Watch) -> None:
    """Heal everything, then have the users take and ack all there is."""
    if world.replica is None:
        world.serve()
    for user in world.users:
        user.demand = 50
    for _ in range(200):
        world.settle_all(until=lambda: True)
        world.now_ms += 100
        for user in world.users:
            watch.took([message.sequence for message in user.take(50)])
            unsettled = [message for message in user.taken if not message.settled]
            if unsettled:
                user.settle("ack", unsettled)
        watch.check()
        assert world.replica is not None
        is_empty = not world.replica.state.live
        if is_empty and all(user.session.is_idle and not user.buffer for user in world.users):
            return
    raise AssertionError("it does not come to rest")


@settings(max_examples=200, deadline=None)
@given(steps=STEPS)
def test_nothing_is_lost_twice_stored_or_handed_out_unflagged(
    steps: list[tuple[str, int, int]],
) -> None:
    """Whatever is lost on the way: every put is stored once and told once, its message is seen,
    at most one of its deliveries says that it is the first, and no resolved ack is undone."""
    world, _ = started()
    world.open()
    watch = Watch(world.users)
    for action, index, count in steps:
        act(world, watch, action, world.users[index], count)
        watch.check()
    drain(world, watch)
    sent = [put for user in world.users for put in user.sent]
    assert [put.outcome for put in sent] == ["stored"] * len(sent)
    assert all(put.outcomes == 1 for put in sent)
    assert sorted(put.sequence for put in sent) == [*range(1, len(sent) + 1)]
    taken = [message for user in world.users for message in user.taken]
    assert {message.body for message in taken} == {put.body for put in sent}
    firsts = Counter(message.sequence for message in taken if message.piece.count == 1)
    assert all(count == 1 for count in firsts.values())
