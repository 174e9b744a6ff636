"""Scenarios of policies and placement on virtual time: where copies and masters go, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mirrorq.engine.events import Answer, Ask
from mirrorq.protocol.commands import (
    ClearPolicy,
    DeclareQueue,
    DeleteQueue,
    Rebalance,
    SetPolicy,
    TransferMaster,
)
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import View

from .world import World

Shape = tuple[str, str, str]
"""(master, mirrors in sync, joining), the latter two sorted."""
KEEP_MS = 3000
"""A lost member's place is kept so long."""
COUNT = 40


def exactly(count: int) -> dict[str, Any]:
    return {"ha-mode": "exactly", "ha-params": count}


def nodes(*names: str) -> dict[str, Any]:
    return {"ha-mode": "nodes", "ha-params": list(names)}


ALL = {"ha-mode": "all"}


class Placed(World):
    """A world whose policy changes, and that notes every view that there was."""

    def __init__(self, names: str = "abc", *, witnesses: str = "", seed: int = 1) -> None:
        super().__init__(names, witnesses=witnesses, seed=seed)
        self.views: dict[int, View] = {}
        self._note_views()

    def _note_views(self) -> None:
        for name in self.cluster.running:
            record = self.cluster.engine(name).catalog.queue(self.queue_id)
            if record is not None:
                self.views.setdefault(record.view.epoch, record.view)
        self.cluster.after(1, self._note_views)

    def set_policy(self, definition: Mapping[str, Any], node: str = "a") -> None:
        policy = parse("p", "", definition)
        answer = self.cluster.ask(node, SetPolicy("p", to_text(policy)))
        assert not answer.error, answer.text

    def clear_policy(self) -> None:
        assert not self.cluster.ask(self.cluster.running[0], ClearPolicy("p")).error

    @property
    def shape(self) -> Shape:
        """Of the newest view."""
        return shape_of(self.views[max(self.views)])

    def until_shape(self, master: str, mirrors: str = "", limit_ms: int = 20_000) -> None:
        """Until the view is this one, nobody joins any more, and the master serves."""
        wanted = (master, mirrors, "")
        done = self.cluster.run_until(
            lambda: self.shape == wanted and self.master == master, limit_ms
        )
        assert done, (self.shape, self.cluster.trace[-10:])

    def check_contents(self) -> None:
        """Every member of the view has every acknowledged message."""
        self.until(lambda: all(a.state == "acknowledged" for a in self.journal.attempts.values()))
        self.cluster.run(500)
        count = len(self.journal.attempts)
        members = [member.id.node for member in self.views[max(self.views)].members]
        assert {name: self.live(name) for name in members} == dict.fromkeys(members, count)

    def finish(self) -> None:
        """Without a policy every node has a copy again, and all is consumed."""
        self.cluster.start()
        self.cluster.heal_all()
        self.clear_policy()
        self.check()

    def begin(self, name: str, command: SetPolicy | TransferMaster | Rebalance) -> int:
        """Ask without waiting; the token is `answered` later."""
        self.cluster._tokens += 1
        self.cluster.tell(name, Ask(self.cluster._tokens, command))
        return self.cluster._tokens

    def answered(self, name: str, token: int) -> Answer:
        answers = self.cluster.nodes[name].answers
        self.until(lambda: token in answers)
        return answers.pop(token)


def shape_of(view: View) -> Shape:
    master, *others = view.members
    mirrors = "".join(sorted(m.id.node for m in others if m.in_sync))
    return master.id.node, mirrors, "".join(sorted(m.id.node for m in others if not m.in_sync))


@pytest.mark.parametrize("traffic", [False, True], ids=["quiet", "traffic"])
@pytest.mark.parametrize("seed", range(3))
def test_18_the_walk_through_all_modes(traffic: bool, seed: int) -> None:
    """exactly 1, all, nodes[A,B], nodes[A,C], exactly 1, nodes[B,C]: copies and master follow,
    C is added before B is dropped, and the contents are intact at each step."""
    world = Placed(seed=seed)
    world.put("b", COUNT, "kept")
    steps = [
        (exactly(1), "a", ""),
        (ALL, "a", "bc"),
        (nodes("a", "b"), "a", "b"),
        (nodes("a", "c"), "a", "c"),
        (exactly(1), "a", ""),
        (nodes("b", "c"), "b", "c"),
    ]
    for number, (definition, master, mirrors) in enumerate(steps):
        producer = world.producer("bca"[number % 3], COUNT * traffic, f"t{number}")
        world.cluster.run(20)
        before = max(world.views)
        world.set_policy(definition, "abc"[number % 3])
        world.until_shape(master, mirrors)
        world.until(lambda p=producer: p.is_done)  # type: ignore[misc]
        world.check_contents()
        new = [shape_of(view) for epoch, view in world.views.items() if epoch > before]
        if number == 3:
            assert ("a", "bc", "") in new
            assert all("b" in mirrors for _, mirrors, _ in new[:-1])
        if number == 5:
            *_, last_of_a = [shape for shape in new if shape[0] == "a"]
            assert "b" in last_of_a[1]
    world.finish()


@pytest.mark.parametrize("seed", range(4))
def test_1_the_master_is_moved_off_by_policy(seed: int) -> None:
    """20 ms into the traffic: every publish is confirmed, and the consumer sees it all."""
    world = Placed(seed=seed)
    world.consumer("c")
    producer = world.producer("b", 1000)
    world.cluster.run(50)
    assert not producer.is_done
    world.set_policy(nodes("b", "c"))
    world.until_shape("b", "c")
    assert not producer.is_done
    world.until(lambda: producer.is_done)
    assert {a.state for a in world.journal.attempts.values()} == {"acknowledged"}
    world.finish()


def test_19_a_lost_mirror_is_replaced_and_there_are_still_two() -> None:
    """exactly 2: after a while another node takes its place; the first comes back: still two."""
    world = Placed("abcd")
    world.put("a", COUNT)
    world.set_policy(exactly(2))
    world.until_shape("a", "b")
    world.cluster.kill("b")
    world.until_shape("a")
    lost_ms = world.cluster.now_ms
    world.until_shape("a", "c")
    assert KEEP_MS - 1000 < world.cluster.now_ms - lost_ms < KEEP_MS + 2000
    world.check_contents()
    world.cluster.start("b")
    world.cluster.run(10_000)
    assert world.shape == ("a", "c", "")
    assert "wanted" not in "".join(world.status("d").warnings)
    world.finish()


def test_19_a_quick_restart_moves_nothing() -> None:
    """Its place is kept: the mirror that was restarted is in again, and nobody else was."""
    world = Placed("abc")
    world.put("a", COUNT)
    world.set_policy(exactly(2))
    world.until_shape("a", "b")
    world.cluster.kill("b")
    world.until_shape("a")
    world.cluster.run(500)
    world.cluster.start("b")
    world.until_shape("a", "b")
    assert not any("c" in shape_of(view)[2] for view in world.views.values())
    world.check_contents()
    world.finish()


def test_19_the_master_of_two_is_lost() -> None:
    """Its mirror takes over at once, and a third node becomes the mirror."""
    world = Placed("abc")
    world.put("a", COUNT)
    world.set_policy(exactly(2))
    world.until_shape("a", "b")
    producer = world.producer("c", COUNT, "during")
    world.cluster.run(20)
    world.cluster.kill("a")
    world.until(lambda: world.master == "b", 3000)
    world.until_shape("b", "c")
    world.until(lambda: producer.is_done)
    world.check_contents()
    world.finish()


def test_19_exactly_four_on_three_nodes_is_all_of_them_and_fills_up() -> None:
    """The fourth node comes up later, and takes the place that was free."""
    world = Placed("abcd")
    world.put("a", COUNT)
    world.cluster.kill("d")
    world.set_policy(exactly(4))
    world.until_shape("a", "bc")
    (warning,) = world.status("b").warnings
    assert warning == "wanted 4 copies, have 3: d does not run"
    world.cluster.start("d")
    world.until_shape("a", "bcd")
    world.check_contents()
    assert world.status("b").warnings == ()
    world.finish()


def test_20_listed_nodes_that_do_not_run_are_ignored() -> None:
    """nodes[A,B,x] with B stopped: A alone, and B when it comes back."""
    world = Placed()
    world.put("a", COUNT)
    world.cluster.kill("b")
    world.set_policy(nodes("a", "b", "x"))
    world.until_shape("a")
    (warning,) = world.status("c").warnings
    assert warning == (
        "wanted 3 copies, have 1: b does not run; x is not a node of this cluster that holds queues"
    )
    world.cluster.start("b")
    world.until_shape("a", "b")
    world.check_contents()
    world.finish()


def test_20_when_no_listed_node_runs_all_stays() -> None:
    """The policy cannot be met: the copies stay, and status says so."""
    world = Placed()
    world.put("a", COUNT)
    world.set_policy(nodes("x", "y"))
    world.cluster.run(5000)
    assert world.shape == ("a", "bc", "")
    (warning,) = world.status("b").warnings
    assert warning.endswith("the master stays on a until a listed node is in sync")
    world.check_contents()
    world.finish()


@pytest.mark.parametrize("seed", range(3))
def test_20_the_last_copy_in_sync_is_never_removed(seed: int) -> None:
    """nodes[C], which has no copy and loses its connection while it is added: A stays
    master with everything; C leads as soon as it is in sync."""
    world = Placed(seed=seed)
    world.put("a", COUNT)
    world.set_policy(exactly(1))
    world.until_shape("a")
    world.set_policy(nodes("c"))
    world.cluster.run(seed * 3)
    world.cluster.cut("a", "c")
    world.cluster.run(10_000)
    assert world.shape[0] in "ac"
    if world.shape[0] == "a":
        # What was on its way to C when the link was cut, it hears of when that is whole again.
        assert world.live("a") == COUNT
    world.cluster.heal_all()
    world.until_shape("c")
    world.check_contents()
    world.finish()


@pytest.mark.parametrize("locator", ["min-masters", "client-local", "random"])
def test_25_new_queues_go_where_the_locator_says(locator: str) -> None:
    """Twelve queues of one declarer: level, all with the declarer, or spread."""
    world = Placed()
    world.set_policy({"queue-master-locator": locator})
    masters = [world.cluster.master(world.cluster.declare("b", f"q{i}")) for i in range(12)]
    counts = {name: masters.count(name) for name in "abc"}
    if locator == "client-local":
        assert counts == {"a": 0, "b": 12, "c": 0}
    elif locator == "min-masters":
        # "orders" is a's.
        assert counts == {"a": 4, "b": 4, "c": 4} or counts == {"a": 3, "b": 5, "c": 4}
    else:
        assert min(counts.values()) >= 1
    world.finish()


def test_25_rebalance_levels_masters_and_moves_no_byte() -> None:
    """Nine queues of A's become three each; nothing is sent but the new masters' first ops."""
    world = Placed()
    queues = [world.queue_id, *[world.cluster.declare("a", f"q{i}") for i in range(8)]]
    bodies = world.put("a", 10 * COUNT)
    world.cluster.run(2000)
    before = dict(world.cluster.entries_sent)
    answer = world.cluster.ask("b", Rebalance())
    assert (answer.error, answer.value) == ("", 6)
    world.until(lambda: all(world.cluster.master(queue) is not None for queue in queues))
    masters = [world.cluster.master(queue) for queue in queues]
    assert {name: masters.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}
    world.cluster.run(1000)
    sent = sum(world.cluster.entries_sent.values()) - sum(before.values())
    assert sent < len(bodies) // 6
    assert world.cluster.ask("c", Rebalance()).value == 0
    world.check()


def test_25_a_second_rebalance_is_told_that_one_is_running() -> None:
    """Asked for while the first is at it; afterwards it is admitted again."""
    world = Placed()
    for i in range(8):
        world.cluster.declare("a", f"q{i}")
    first = world.begin("b", Rebalance())
    world.cluster.run(6)
    second = world.begin("c", Rebalance())
    refused = world.answered("c", second)
    assert refused.error == "PreconditionFailed"
    assert "b asked for is running" in refused.text
    assert world.answered("b", first).value == 6
    assert not world.cluster.ask("c", Rebalance()).error
    world.check()


@pytest.mark.parametrize("seed", range(6))
def test_a_master_is_transferred_under_load(seed: int) -> None:
    """Asked of any node: lossless, without waiting for a lease, and other queues of the old
    master go on handing out."""
    world = Placed(seed=seed)
    world.consumer("abc"[seed % 3])
    producer = world.producer("c", 300)
    world.cluster.run(100)
    for asked, target in (("a", "b"), ("a", "c"), ("b", "a"), ("c", "a")):
        begun_ms = world.cluster.now_ms
        answer = world.cluster.ask(asked, TransferMaster("orders", target))
        assert not answer.error, answer.text
        took_ms = world.cluster.now_ms - begun_ms
        assert took_ms < world.cluster.config.lease_ms
        # What the call says is so on the node that was asked.
        record = world.cluster.engine(asked).catalog.queue(world.queue_id)
        assert record is not None
        assert record.view.members[0].id.node == target
        world.cluster.run(30)
    world.until(lambda: producer.is_done)
    world.check()


@pytest.mark.parametrize("seed", range(4))
def test_two_masters_never_delivery_side_by_side(seed: int) -> None:
    """The old master learns of all late and has a lease: the new one hands nothing out before
    the old one's last."""
    worlds = (Placed(seed=number) for number in range(10 * seed, 10 * seed + 10))
    world = next(one for one in worlds if one.cluster.engine("a").leader != "a")
    world.consumer("a")
    world.consumer("b")
    producer = world.producer("a", 400)
    world.cluster.run(200)
    for other in "bc":
        world.cluster.network.link(other, "a").delay_ms = 100
    assert not world.cluster.ask("c", TransferMaster("orders", "b")).error
    world.until(lambda: producer.is_done)
    times: dict[int, list[int]] = {}
    for (_, master_epoch, _), time_ms in world.cluster.handed_ms.items():
        times.setdefault(master_epoch, []).append(time_ms)
    first, second = sorted(times)
    assert max(times[first]) <= min(times[second])
    world.check()


def test_a_transfer_that_cannot_be_is_refused_with_the_reason() -> None:
    """No such queue, no such node, no copy, not in sync, not running, unwanted: nothing moves."""
    world = Placed("abcd")
    ask = world.cluster.ask
    assert ask("b", TransferMaster("none", "a")).error == "QueueNotFound"
    world.cluster.kill("d")
    world.until_shape("a", "bc")
    for node, reason in (("x", "no node has that name"), ("d", "it has no copy")):
        answer = ask("b", TransferMaster("orders", node))
        assert answer.error == "PreconditionFailed"
        assert reason in answer.text
    world.cluster.cut("b", "d")
    world.cluster.cut("c", "d")
    world.cluster.cut("a", "d")
    world.cluster.start("d")
    world.cluster.run(2000)
    answer = ask("b", TransferMaster("orders", "d"))
    assert answer.error == "PreconditionFailed"
    assert world.shape[0] == "a"
    world.cluster.heal_all()
    world.until_shape("a", "bcd")
    world.set_policy(nodes("a", "x"))
    world.until_shape("a")
    assert "it has no copy" in ask("b", TransferMaster("orders", "b")).text
    assert ask("b", TransferMaster("orders", "a")).error == ""
    world.finish()


@pytest.mark.parametrize("seed", range(8))
def test_the_leader_dies_between_promise_and_proposal(seed: int) -> None:
    """The master has promised to hand nothing out; nobody knows of it any more. It is asked
    again or let off: the queue goes on either way."""
    world = Placed("abcde", seed=seed)
    world.consumer("b")
    producer = world.producer("b", 200)
    world.cluster.run(100)
    leader = world.cluster.engine("a").leader
    assert leader is not None
    asked = next(name for name in "bcde" if name != leader)
    target = next(name for name in "bcd" if name != leader)
    world.begin(asked, TransferMaster("orders", target))
    replicas = [world.cluster.engine(name).replicas[world.queue_id] for name in "abcde"]
    world.cluster.run_until(lambda: any(r.yielded_epoch is not None for r in replicas), 200)
    world.cluster.kill(leader)
    world.until(lambda: producer.is_done)
    world.until(lambda: world.master == target)
    world.check()


def test_26_policies_change_under_declare_publish_and_delete() -> None:
    """A policy is set and cleared all the time while queues come, are used and go: no error,
    and afterwards no node holds anything of them."""
    world = Placed()
    tokens: list[int] = []
    definitions = (exactly(1), nodes("b", "c"), ALL, nodes("c"), exactly(2))

    def change(number: int) -> None:
        if number < 300:
            definition = definitions[number % len(definitions)]
            command = SetPolicy("q", to_text(parse("q", "^q", definition)))
            tokens.append(world.begin("c", command))
            world.cluster.after(13, lambda: change(number + 1))

    change(0)
    for number in range(100):
        node = "abc"[number % 3]
        answer = world.cluster.ask(
            node, DeclareQueue(f"q{number}", True, False, False, node, None, ())
        )
        assert not answer.error, answer.text
        queue_id, world.queue_id = world.queue_id, answer.value
        world.put("abc"[number % 2], 1, f"m{number}")
        world.queue_id = queue_id
        assert not world.cluster.ask(node, DeleteQueue(answer.value)).error
    for token in tokens:
        assert not world.answered("c", token).error
    world.cluster.run(5000)
    for node in world.cluster.nodes.values():
        assert set(world.cluster.engine(node.name).replicas) == {world.queue_id}
        left = [queue for queue, files in node.disk.queues.items() if files.frames]
        assert left == []


def test_a_queue_that_is_moved_to_a_node_that_has_just_died_keeps_its_other_copies() -> None:
    """Nobody has noticed its death yet when a policy says that it alone is to have the queue. The
    others must not go before it has shown that it lives (seed 2146)."""
    world = Placed("abc")
    world.put("a", 20)
    world.until_in_sync(*"abc")
    leader = world.cluster.engine("a").leader
    assert leader is not None
    dead = next(name for name in "cb" if name != leader)
    for other in "abc":
        if other != dead:
            world.cluster.cut(other, dead, silent=True)
    world.set_policy(nodes(dead), leader)
    world.cluster.run(5000)
    assert world.master not in (None, dead), world.shape


@pytest.mark.parametrize("is_named_first", ["master", "mirror"])
def test_when_both_copies_fail_at_once_either_brings_the_queue_back(is_named_first: str) -> None:
    """One of the two is known dead at once, the other one's silence is noticed a second later. The
    one that comes back has all that was confirmed, whichever it is."""
    world = Placed("abcde")
    world.put("a", COUNT)
    world.set_policy(exactly(2))
    world.until(lambda: len(world.shape[1]) == 1 and world.master == world.shape[0])
    master, mirror, _ = world.shape
    killed, silent = (master, mirror) if is_named_first == "master" else (mirror, master)
    for other in "abcde":
        if other != silent:
            world.cluster.cut(other, silent, silent=True)
    world.cluster.kill(killed)
    world.cluster.run(5000)
    world.cluster.kill(silent)
    world.cluster.start(killed)
    world.until(lambda: world.master == killed)
    world.cluster.heal_all()
    world.finish()
