"""Who is alive, silent, dead or unknown, and which links are broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.controller.failure_detector import FailureDetector, Status, WantedProbe
from mirrorq.config import Config
from mirrorq.protocol.identities import MemberId

A, B, C = (MemberId(name, number, 1) for number, name in enumerate("abc", 1))
CONFIG = Config(failure_ms=1000, heartbeat_ms=250)


class Ear:
    """A FailureDetector on node a, and a clock that lets others be heard every 250 ms."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.liveness = FailureDetector(A, CONFIG, 0)
        self.hears: dict[MemberId, tuple[str, ...]] = {}
        self.changes = 0

    def run(self, span_ms: int) -> None:
        end_ms = self.now_ms + span_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 250, end_ms)
            self.liveness.advance(self.now_ms)
            for member, unheard in self.hears.items():
                self.liveness.on_heard(member, unheard)
            self.changes += bool(self.liveness.refresh())

    def at(self, now_ms: int) -> FailureDetector:
        self.now_ms = now_ms
        self.liveness.advance(now_ms)
        return self.liveness

    def status(self, member: MemberId) -> Status:
        self.liveness.refresh()
        return self.liveness.status(member)


@pytest.fixture
def ear() -> Ear:
    ear = Ear()
    ear.hears = {B: (), C: ()}
    ear.run(1250)
    ear.liveness.deaths()
    return ear


def test_who_was_never_heard_is_unknown_first_and_then_silent() -> None:
    """A node that has just started must not take the others for dead."""
    ear = Ear()
    assert ear.status(B) is Status.UNKNOWN
    ear.run(999)
    assert ear.status(B) is Status.UNKNOWN
    assert ear.liveness.unheard(("a", "b")) == ()
    ear.run(1)
    assert ear.status(B) is Status.SILENT
    assert ear.liveness.unheard(("a", "b")) == ("b",)


def test_silence_begins_after_failure_ms(ear: Ear) -> None:
    """One millisecond before the bound a node is alive, at the bound silent, never dead."""
    del ear.hears[B]
    ear.run(999)
    assert ear.status(B) is Status.ALIVE
    ear.run(1)
    assert (ear.status(B), ear.status(C)) == (Status.SILENT, Status.ALIVE)
    assert ear.liveness.unheard(("a", "b", "c")) == ("b",)
    assert ear.liveness.deaths() == ()


def test_an_ended_connection_and_a_refused_probe_are_death(ear: Ear) -> None:
    """At once, not after failure_ms; told once."""
    ear.liveness.on_link_down("b")
    (probe,) = ear.liveness.probes()
    assert probe.node == "b"
    assert ear.status(B) is Status.ALIVE
    ear.liveness.on_probe_refused("b", probe.number)
    ear.liveness.on_heard(C, ("b",))
    assert ear.status(B) is Status.DEAD
    assert ear.liveness.deaths() == (B,)
    assert ear.liveness.deaths() == ()


def test_who_others_hear_is_not_dead(ear: Ear) -> None:
    """Something between this node and that one ends connections and refuses new ones: its death is
    this node's word alone, which it tells, and not believed. Not heard, it becomes silent."""
    ear.liveness.on_link_down("b")
    (probe,) = ear.liveness.probes()
    ear.liveness.on_probe_refused("b", probe.number)
    assert ear.status(B) is Status.ALIVE
    assert ear.liveness.unheard(("a", "b", "c")) == ("b",)
    del ear.hears[B]
    ear.run(999)
    assert ear.status(B) is Status.ALIVE
    ear.run(1)
    assert ear.status(B) is Status.SILENT
    assert ear.liveness.deaths() == ()


def test_who_goes_on_talking_is_not_dead(ear: Ear) -> None:
    """Over connections of its own, as when its port alone is closed to others: what it says later
    than anything that was on its way ends the doubt, though others have it too."""
    ear.liveness.on_link_down("b")
    (probe,) = ear.liveness.probes()
    ear.liveness.on_probe_refused("b", probe.number)
    ear.at(ear.now_ms + 250).on_heard(B, ())
    assert ear.status(B) is Status.ALIVE
    assert ear.liveness.unheard(("a", "b", "c")) == ()
    ear.liveness.on_heard(C, ("b",))
    assert ear.status(B) is Status.ALIVE
    assert ear.liveness.deaths() == ()


@pytest.mark.parametrize(("others", "needed"), [(1, 1), (2, 1), (3, 2), (4, 2)])
def test_more_than_half_of_those_heard_must_find_it_gone(others: int, needed: int) -> None:
    """This node among them. Who is silent has no say."""
    rest = [MemberId(name, number, 1) for number, name in enumerate("cdefg"[: others + 1], 3)]
    ear = Ear()
    ear.hears = {B: (), **dict.fromkeys(rest, ())}
    ear.run(1250)
    del ear.hears[rest[-1]]
    ear.run(1000)
    ear.liveness.on_link_down("b")
    (probe,) = ear.liveness.probes()
    ear.liveness.on_probe_refused("b", probe.number)
    for number, other in enumerate(rest[:-1], 1):
        assert ear.status(B) is (Status.DEAD if number > needed else Status.ALIVE)
        ear.liveness.on_heard(other, ("b",))
    assert ear.status(B) is Status.DEAD


def test_refused_probes_may_be_nothing() -> None:
    """As configured where something else refuses in a node's name."""
    liveness = FailureDetector(A, Config(failure_ms=1000, heartbeat_ms=250, trust_refused=False), 0)
    liveness.advance(100)
    liveness.on_heard(B, ())
    liveness.refresh()
    liveness.on_link_down("b")
    (probe,) = liveness.probes()
    liveness.on_probe_refused("b", probe.number)
    liveness.refresh()
    assert liveness.status(B) is Status.ALIVE
    for now_ms in range(350, 1101, 250):
        liveness.advance(now_ms)
    liveness.refresh()
    assert liveness.status(B) is Status.SILENT
    liveness.on_heard(MemberId("b", B.store, 2), ())
    liveness.refresh()
    assert liveness.status(B) is Status.DEAD


def test_a_refused_probe_alone_is_nothing(ear: Ear) -> None:
    """Without an ended connection it may be of a node that has not opened its listener."""
    ear.liveness.on_probe_refused("b", 1)
    assert ear.status(B) is Status.ALIVE


def test_a_refusal_of_an_older_probe_explains_no_newer_end(ear: Ear) -> None:
    """The process that refused it may be the one before."""
    ear.liveness.on_link_down("b")
    (old,) = ear.liveness.probes()
    again = MemberId("b", B.store, 2)
    ear.liveness.on_heard(again, ())
    ear.liveness.on_link_down("b")
    (new,) = ear.liveness.probes()
    ear.liveness.on_heard(C, ("b",))
    ear.liveness.on_probe_refused("b", old.number)
    assert ear.status(again) is Status.ALIVE
    ear.liveness.on_probe_refused("b", new.number)
    assert ear.status(again) is Status.DEAD


def test_probes_are_repeated_while_the_end_is_unexplained(ear: Ear) -> None:
    """A dying process may close its connections before its listener; any refusal counts."""
    start_ms = ear.now_ms
    ear.liveness.on_link_down("b")
    sent: list[tuple[int, WantedProbe]] = []
    for now_ms in range(start_ms, start_ms + 200):
        ear.at(now_ms)
        sent += [(now_ms - start_ms, probe) for probe in ear.liveness.probes()]
    assert [at for at, _ in sent] == [0, 10, 30, 70, 150]
    ear.liveness.on_heard(C, ("b",))
    ear.liveness.on_probe_refused("b", sent[2][1].number)
    assert ear.status(B) is Status.DEAD
    assert ear.at(ear.now_ms + 5000).probes() == ()


def test_what_was_on_the_wire_revives_nobody(ear: Ear) -> None:
    """A sign of life read after the known death was sent before it; a late one does count,
    so that a wrong judgement does not last."""
    ear.liveness.on_link_down("b")
    ear.liveness.on_heard(B, ())
    (probe,) = ear.liveness.probes()
    ear.liveness.on_heard(C, ("b",))
    ear.liveness.on_probe_refused("b", probe.number)
    assert ear.status(B) is Status.DEAD
    ear.at(ear.now_ms + 500).on_heard(B, ())
    assert ear.status(B) is Status.DEAD
    ear.at(ear.now_ms + 500).on_heard(B, ())
    assert ear.status(B) is Status.ALIVE
    assert not ear.liveness.is_steady(B)


def test_a_connection_that_came_back_is_probed_no_longer(ear: Ear) -> None:
    """A cut cable ends a connection too: when the node goes on talking, all is well."""
    ear.liveness.on_link_down("b")
    ear.at(ear.now_ms + 250).on_heard(B, ())
    assert ear.liveness.probes() == ()
    assert ear.status(B) is Status.ALIVE


def test_a_higher_incarnation_says_that_the_lower_is_dead(ear: Ear) -> None:
    """And the lower one is never heard again; another store under the name says nothing."""
    again, wiped = MemberId("b", B.store, 2), MemberId("c", 99, 1)
    ear.liveness.on_heard(again, ())
    ear.liveness.on_heard(wiped, ())
    ear.liveness.on_heard(B, ())
    assert (ear.status(B), ear.status(again)) == (Status.DEAD, Status.ALIVE)
    assert ear.status(C) is Status.ALIVE
    assert ear.liveness.deaths() == (B,)
    assert ear.liveness.is_steady(again)


def test_the_own_incarnation_before_is_dead() -> None:
    """This process holds the store's lock."""
    ear = Ear()
    assert ear.status(MemberId("a", A.store, 0)) is Status.DEAD
    assert ear.status(A) is Status.ALIVE


def test_a_pause_of_this_node_is_not_the_silence_of_the_others(ear: Ear) -> None:
    """After a stop of 30 s everybody has almost failure_ms to be heard again."""
    ear.at(ear.now_ms + 30_000)
    assert ear.status(B) is Status.ALIVE
    ear.hears = {}
    ear.run(1000)
    assert ear.status(B) is Status.SILENT


def test_who_comes_back_from_silence_must_stay(ear: Ear) -> None:
    """No flapping: it is steady after 3 x failure_ms, and later after each new silence."""
    waits = []
    for _ in range(2):
        del ear.hears[B]
        ear.run(1250)
        ear.hears[B] = ()
        ear.run(250)
        start_ms = ear.now_ms
        assert ear.status(B) is Status.ALIVE
        assert not ear.liveness.is_steady(B)
        while not ear.liveness.is_steady(B):
            ear.run(250)
        waits.append(ear.now_ms - start_ms)
    assert waits == [2750, 5750]


def test_a_link_is_broken_when_both_ends_say_so(ear: Ear) -> None:
    """One word of each is enough; the order of the names is no matter."""
    ear.hears = {B: ("c",), C: ("b",)}
    ear.run(250)
    assert ear.liveness.is_broken("b", "c")
    assert ear.liveness.is_broken("c", "b")
    assert not ear.liveness.is_broken("a", "b")


def test_one_end_is_believed_after_twice_failure_ms(ear: Ear) -> None:
    """Loss in one direction: only the receiver notices."""
    ear.hears[B] = ("c",)
    ear.run(2000)
    assert not ear.liveness.is_broken("b", "c")
    ear.run(250)
    assert ear.liveness.is_broken("b", "c")


def test_nobody_hears_a_dead_node_and_that_breaks_no_link(ear: Ear) -> None:
    """Links are between the living."""
    del ear.hears[C]
    ear.hears[B] = ("c",)
    ear.run(10_000)
    assert not ear.liveness.is_broken("b", "c")


def test_a_repaired_link_counts_after_a_while_that_grows(ear: Ear) -> None:
    """3 x failure_ms without a report, then 6 x: what flaps is left alone longer."""
    waits = []
    for _ in range(2):
        ear.hears = {B: ("c",), C: ("b",)}
        ear.run(250)
        ear.hears = {B: (), C: ()}
        start_ms = ear.now_ms
        while ear.liveness.is_broken("b", "c"):
            ear.run(250)
        waits.append(ear.now_ms - start_ms)
    assert waits == [3000, 6000]


def test_a_restart_mends_the_links_of_a_node(ear: Ear) -> None:
    """Its connections are new ones; if they do not work either, that is said again."""
    ear.hears = {B: ("c",), C: ("b",)}
    ear.run(250)
    ear.hears = {C: (), MemberId("b", B.store, 2): ()}
    ear.run(250)
    assert not ear.liveness.is_broken("b", "c")


def test_who_does_not_hear_this_node_is_silent_for_it(ear: Ear) -> None:
    """It is heard, but no view and no lease would reach it."""
    ear.hears[B] = ("a",)
    ear.run(2250)
    assert (ear.status(B), ear.status(C)) == (Status.SILENT, Status.ALIVE)


def test_changes_are_told_once(ear: Ear) -> None:
    """Nothing is judged anew while nothing has changed."""
    ear.changes = 0
    ear.run(5000)
    assert ear.changes == 0
    del ear.hears[B]
    ear.run(5000)
    assert ear.changes == 1


members = st.builds(MemberId, st.sampled_from("abcd"), st.sampled_from([1, 2]), st.integers(1, 3))
names = st.sampled_from("abcd")
inputs = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 3000)),
    st.tuples(st.just("heard"), members, st.lists(names, max_size=3).map(tuple)),
    st.tuples(st.just("down"), names),
    st.tuples(st.just("refused"), names, st.integers(0, 20)),
)


@given(st.lists(inputs, max_size=60))
def test_any_input_is_judged(steps: list[tuple[object, ...]]) -> None:
    """Any order of anything: an answer for everybody, the dead stay dead when superseded, and
    the own node is never judged."""
    liveness, now_ms, superseded = FailureDetector(A, CONFIG, 0), 0, []
    for step in steps:
        match step:
            case ("wait", int(span_ms)):
                now_ms += span_ms
                liveness.advance(now_ms)
            case ("heard", MemberId() as member, tuple(unheard)):
                liveness.on_heard(member, unheard)
                if member.node != "a":
                    superseded.append(MemberId(member.node, member.store, member.incarnation - 1))
            case ("down", str(name)):
                liveness.on_link_down(name)
            case ("refused", str(name), int(number)):
                liveness.on_probe_refused(name, number)
        liveness.refresh()
        liveness.probes()
        wake_at_ms = liveness.wake_at_ms()
        assert wake_at_ms is None or wake_at_ms >= now_ms
        assert liveness.status(A) is Status.ALIVE
        assert all(liveness.status(one) is Status.DEAD for one in superseded)
