"""Each duty of the catalog's leader: what is proposed, granted, refused, and when."""

from __future__ import annotations

from msgspec.structs import replace

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.records import QueueRecord
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.events import (
    CatalogChanged,
    CatalogReplaced,
    ControllerTick,
    Event,
    Heard,
    LinkBroken,
    ProbeRefused,
    SupervisorEffects,
)
from mirrorq.cluster.controller.failure_detector import Status
from mirrorq.cluster.controller.leases import Leading
from mirrorq.config import Config
from mirrorq.protocol.commands import (
    CatalogCommand,
    ChangeView,
    DeclareQueue,
    DeleteQueue,
    DropCopy,
    RegisterNode,
    RemoveNode,
    SetPolicy,
)
from mirrorq.protocol.control import (
    CatalogAnswer,
    CatalogRequest,
    LeaseAnswer,
    LeaseRelease,
    LeaseRequest,
    Yield,
    Yielded,
)
from mirrorq.protocol.identities import MemberId, SessionId, StoreId
from mirrorq.protocol.policy import parse, to_text
from mirrorq.protocol.views import Member, in_sync_ids, joining_ids

W, A, B, C, D = (MemberId(name, number, 1) for number, name in enumerate("wabcd", 1))
CONFIG = Config(failure_ms=1000, heartbeat_ms=250, lease_ms=300)
SPAN_MS = 330
FAILURE_MS = 1000


def again(member: MemberId) -> MemberId:
    return replace(member, incarnation=member.incarnation + 1)


def in_sync(*ids: MemberId) -> tuple[Member, ...]:
    return tuple(Member(one, True) for one in ids)


def joining(*ids: MemberId) -> tuple[Member, ...]:
    return tuple(Member(one, False) for one in ids)


class Leader:
    """A supervisor on witness w that leads, with nodes that say hello every 250 ms.

    What it proposes is collected, and applied at once while `commits` is true. A master that runs
    gives its word at once when it is asked for it.
    """

    def __init__(self, *nodes: MemberId, commits: bool = True, settled: bool = True) -> None:
        self.now_ms = 0
        self.commits = commits
        self.catalog = Catalog()
        self.supervisor = Controller(W, self.catalog, CONFIG, 0)
        self.contact = True
        self.own_term_applied = True
        self.term = 1
        self.up: dict[MemberId, tuple[str, ...]] = {}
        self.proposed: list[CatalogCommand] = []
        self.granted: list[tuple[str, LeaseAnswer]] = []
        self.last = SupervisorEffects()
        self.commit(RegisterNode("w", W.store, 1, "tcp://w", True))
        for node in nodes:
            self.start(node)
        if settled:
            self.run(FAILURE_MS + 250)  # past the wait after the election

    def step(self, event: Event) -> SupervisorEffects:
        leading = None
        if self.term:
            contact_ms = self.now_ms if self.contact else 0
            index = self.catalog.applied_index
            leading = Leading(self.term, self.own_term_applied, index, contact_ms)
        self.last = effects = self.supervisor.step(self.now_ms, event, leading)
        self.granted += effects.send
        self.proposed += effects.propose
        if self.commits:
            for command in effects.propose:
                self.commit(command)
        for name, wanted in effects.yields:
            self.promise(name, wanted)
        return effects

    def promise(self, name: str, wanted: Yield) -> None:
        """A master is asked for its word."""
        queue = self.catalog.queue(wanted.queue_id)
        if queue is None or queue.view.epoch != wanted.epoch:
            return
        master = queue.view.members[0].id
        if master in self.up and master.node == name:
            self.step(Yielded(wanted.queue_id, wanted.epoch, master))

    def commit(self, command: CatalogCommand) -> int:
        result = self.catalog.apply(self.catalog.applied_index + 1, command)
        assert not result.error, result.text
        self.step(CatalogChanged(result.queues, result.nodes, result.redefines))
        return result.value

    def start(self, node: MemberId) -> None:
        """A new incarnation: it says hello and is registered."""
        for old in [one for one in self.up if one.node == node.node]:
            del self.up[old]
        self.up[node] = ()
        self.step(Heard(node))
        at = f"tcp://{node.node}"
        self.commit(RegisterNode(node.node, node.store, node.incarnation, at, False))

    def kill(self, node: MemberId) -> None:
        """SIGKILL: the connection ends, a probe is refused, and the others find the same."""
        del self.up[node]
        (probe,) = self.step(LinkBroken(node.node)).probe
        for other, unheard in self.up.items():
            self.step(Heard(other, (*unheard, node.node)))
        self.step(ProbeRefused(node.node, probe.number))

    def stop(self, node: MemberId) -> None:
        """SIGSTOP, or a cut cable: nothing is heard any more."""
        del self.up[node]

    def run(self, span_ms: int) -> None:
        end_ms = self.now_ms + span_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + 10, end_ms)
            for node, unheard in self.up.items():
                if self.now_ms % 250 == 0:
                    self.step(Heard(node, unheard))
            self.step(ControllerTick())

    def declare(
        self, *members: MemberId, durable: bool = True, exclusive: bool = False
    ) -> QueueRecord:
        first = members[0]
        owner = SessionId(first.node, first.incarnation, 1) if exclusive else None
        queue_id = self.commit(
            DeclareQueue("q", durable, exclusive, False, first.node, owner, members)
        )
        return self.queue(queue_id)

    def queue(self, queue_id: int = 1) -> QueueRecord:
        queue = self.catalog.queue(queue_id)
        assert queue is not None
        return queue

    def ask_lease(self, node: MemberId, number: int) -> bool:
        """Return whether a lease was granted at once."""
        self.granted.clear()
        self.step(LeaseRequest(number, node))
        return bool(self.granted)

    def members(self) -> tuple[Member, ...]:
        return self.queue().view.members


# --- The master -------------------------------------------------------------------------


def test_all_is_well_and_nothing_is_proposed(leader: Leader) -> None:
    """An idle cluster costs no proposal."""
    leader.run(5000)
    assert leader.proposed == []


def test_a_killed_master_is_replaced_at_once(leader: Leader) -> None:
    """Known dead: the first in order takes over in the same step, lease or not."""
    assert leader.ask_lease(A, 1)
    leader.kill(A)
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, C), "clean")]
    assert leader.last.known_dead == ()
    assert leader.queue().view.epoch == 2


def test_a_silent_master_is_replaced_when_its_lease_has_run_out(pair: Leader) -> None:
    """Not before failure_ms of silence, nor before the last grant + lease x 1.1."""
    pair.stop(A)
    pair.run(900)
    assert pair.ask_lease(A, 1)  # relayed by something slow
    granted_ms = pair.now_ms
    pair.run(SPAN_MS - 1)
    assert pair.supervisor.status(A) is Status.SILENT
    assert pair.proposed == []
    pair.run(1)
    assert pair.now_ms == granted_ms + SPAN_MS
    assert pair.proposed == [
        ChangeView(1, 1, in_sync(B, A), "clean"),
        ChangeView(1, 2, in_sync(B)),
    ]


def test_a_silent_master_that_is_heard_in_time_stays_and_gets_its_lease() -> None:
    """Waiting for the lease to run out commits to nothing."""
    leader = Leader(A, B)
    leader.declare(A, B)
    leader.stop(A)
    leader.run(900)
    leader.ask_lease(A, 1)
    leader.run(200)
    assert not leader.ask_lease(A, 2)  # it is about to be replaced
    leader.up[A] = ()
    leader.step(Heard(A))
    assert leader.ask_lease(A, 3)
    leader.run(5000)
    assert leader.proposed == []


def test_a_new_leader_outlasts_leases_of_the_one_before() -> None:
    """It knows no grant, so it waits one lease x 1.1 from its election; not for the dead."""
    for known_dead in (False, True):
        leader = Leader(A, B)
        leader.declare(A, B)
        leader.term = 0
        leader.step(ControllerTick())
        leader.stop(A)
        leader.run(2000)
        leader.term = 2
        leader.step(ControllerTick())
        assert leader.proposed == []
        if known_dead:
            leader.step(Heard(again(A)))
        leader.run(0 if known_dead else SPAN_MS - 1)
        assert bool(leader.proposed) is known_dead
        leader.run(0 if known_dead else 1)
        assert [type(one) for one in leader.proposed] == [ChangeView, ChangeView]


def test_nothing_is_proposed_or_granted_before_an_entry_of_the_own_term() -> None:
    """Until then the applied catalog may lack what was committed before."""
    leader = Leader(A, B)
    leader.declare(A, B)
    leader.own_term_applied, leader.term = False, 2
    leader.step(ControllerTick())
    leader.kill(A)
    assert leader.proposed == []
    assert not leader.ask_lease(B, 1)
    assert leader.last.wants_round
    leader.own_term_applied = True
    leader.step(ControllerTick())
    assert leader.proposed == [
        ChangeView(1, 1, in_sync(B, A), "clean"),
        ChangeView(1, 2, in_sync(B)),
    ]
    assert [name for name, _ in leader.granted] == ["b"]


def test_a_new_leader_that_cannot_commit_does_not_spin(pair: Leader) -> None:
    """A judgement that was due, and may not be made before an entry of the own term is applied,
    had it step without a pause for as long as its disk, or a majority, let it wait."""
    pair.supervisor._agenda.mark([1])
    pair.own_term_applied, pair.term = False, 2
    pair.step(ControllerTick())
    assert pair.last.wake_at_ms is not None
    assert pair.last.wake_at_ms > pair.now_ms


def test_a_node_that_does_not_lead_judges_and_is_silent_about_it(pair: Leader) -> None:
    """It listens, probes and learns of deaths, so that it knows when it comes to lead."""
    pair.term = 0
    pair.step(ControllerTick())
    pair.stop(A)
    (probe,) = pair.step(LinkBroken("a")).probe
    assert pair.step(ProbeRefused("a", probe.number)).known_dead == ()
    assert pair.step(Heard(B, ("a",))).known_dead == (A,)
    pair.run(3000)
    assert pair.proposed == []
    assert not pair.ask_lease(B, 1)
    request = CatalogRequest(4, B, DeleteQueue(1))
    assert pair.supervisor.admit(request, None) == CatalogAnswer(4, 0, retry=True)
    pair.term = 2
    pair.step(ControllerTick())
    assert len(pair.proposed) == 2


def test_who_runs_on_comes_before_who_was_restarted(pair: Leader) -> None:
    """A master that restarts quickly comes back as a mirror (scenario 8)."""
    pair.commits = False
    pair.step(Heard(again(A)))
    assert pair.proposed == [ChangeView(1, 1, in_sync(B, A), "clean")]
    pair.commits = True
    pair.commit(pair.proposed[0])
    pair.start(again(A))
    assert pair.members() == in_sync(B) + joining(again(A))


def test_when_all_were_restarted_the_first_one_back_goes_on(leader: Leader) -> None:
    """R5: any member in sync whose store is the same; cold, as nobody ran on."""
    for node in (A, B, C):
        leader.stop(node)
    leader.run(2000)
    assert leader.proposed == []
    leader.start(again(B))
    assert leader.proposed == [ChangeView(1, 1, in_sync(again(B)), "cold")]
    leader.start(again(A))
    assert leader.members() == in_sync(again(B)) + joining(again(A))


def test_a_queue_without_a_running_member_in_sync_stays_as_it_is() -> None:
    """A joiner, and a wiped store of the right name, are nobody to go on with."""
    leader = Leader(A, B, C)
    leader.declare(A, B)
    assert leader.members() == in_sync(A, B) + joining(C)
    leader.kill(B)
    leader.kill(A)
    leader.start(MemberId("a", 99, 1))
    leader.run(3000)
    view = leader.queue().view
    assert in_sync_ids(view) == (A,)
    assert view.members[0].id == A
    leader.stop(MemberId("a", 99, 1))
    leader.start(again(A))
    assert leader.members()[0] == Member(again(A), True)


def test_a_new_leader_waits_for_those_it_has_not_yet_heard() -> None:
    """Else a cold start would drop what a member that runs on still has."""
    leader = Leader(A, B, settled=False)
    leader.declare(A, B)
    fresh = Leader(commits=False, settled=False)
    fresh.catalog = leader.catalog
    fresh.now_ms = 500
    fresh.step(CatalogReplaced(leader.catalog))
    fresh.catalog.apply(50, RegisterNode("a", A.store, 2, "tcp://a", False))
    fresh.step(CatalogChanged((), ("a",)))
    fresh.step(Heard(again(A)))
    assert fresh.proposed == []
    fresh.step(Heard(B))
    assert fresh.proposed == [ChangeView(1, 1, in_sync(B, A), "clean")]


def test_a_master_that_gave_its_lease_up_hands_over_at_once(leader: Leader) -> None:
    """Clean close: the next in order takes over, and the leaving node is not taken in again."""
    leader.ask_lease(A, 1)
    leader.step(LeaseRelease(A, 1))
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, C), "clean")]
    leader.run(4999)
    assert len(leader.proposed) == 1
    leader.start(again(A))
    assert leader.members() == in_sync(B, C) + joining(again(A))


def test_a_node_that_is_still_there_long_after_it_left_is_taken_in_again() -> None:
    """A close ends within 5 s; who is heard later has changed its mind."""
    leader = Leader(A, B)
    leader.declare(A, B)
    leader.step(LeaseRelease(A, 0))
    leader.run(5000)
    assert leader.members() == in_sync(B) + joining(A)


def test_a_leaving_node_that_asks_for_a_lease_again_stays(pair: Leader) -> None:
    """The close was called off."""
    pair.step(LeaseRelease(A, 1))
    assert pair.members() == in_sync(B)
    pair.ask_lease(A, 2)
    assert pair.members() == in_sync(B) + joining(A)


def test_when_all_leave_the_last_view_stays_whole(leader: Leader) -> None:
    """A full stop must leave as many copies in sync as can come back."""
    leader.step(LeaseRelease(C, 0))
    leader.commits = False
    leader.step(LeaseRelease(B, 0))
    leader.step(LeaseRelease(A, 0))
    leader.commits = True
    leader.run(2500)
    view = leader.queue().view
    assert view.members[0].id == A
    assert set(in_sync_ids(view)) == {A, B}


# --- Proposals under way ----------------------------------------------------------------


def test_one_proposal_per_epoch_until_it_seems_lost(leader: Leader) -> None:
    """The same epoch is proposed for again only after a time-out."""
    leader.commits = False
    leader.kill(A)
    leader.kill(B)
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, C), "clean")]
    leader.run(FAILURE_MS - 1)
    assert len(leader.proposed) == 1
    leader.run(1)
    assert leader.proposed[1:] == [ChangeView(1, 1, in_sync(C, A, B), "clean")]


def test_what_changes_while_a_proposal_is_under_way_is_not_overlooked(leader: Leader) -> None:
    """A queue that gets the very view that was proposed is judged again, if what it was judged
    by is not as it was: here the policy, changed behind the view in one go."""
    leader.commits = False
    leader.kill(C)
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B))]
    policy = parse("few", "", {"ha-mode": "nodes", "ha-params": ["a"]})
    for command in (leader.proposed[0], SetPolicy("few", to_text(policy))):
        leader.catalog.apply(leader.catalog.applied_index + 1, command)
    leader.step(CatalogChanged((1, 1)))
    assert leader.proposed[1:] == [ChangeView(1, 2, in_sync(A))]
    leader.commit(leader.proposed[1])
    leader.run(FAILURE_MS)
    assert len(leader.proposed) == 2


def test_a_master_gets_no_lease_while_its_replacement_may_be_committed() -> None:
    """Also when it is heard again and the proposal seems lost: first some view of a newer
    epoch must come, so the same view is proposed, which makes the lost one fail."""
    leader = Leader(A, B)
    leader.declare(A, B)
    leader.commits = False
    leader.stop(A)
    leader.run(1250)
    assert leader.proposed == [ChangeView(1, 1, in_sync(B, A), "clean")]
    leader.up[A] = ()
    leader.run(500)
    assert not leader.ask_lease(A, 1)
    leader.run(1000)
    assert leader.proposed[1:] == [ChangeView(1, 1, in_sync(A, B))]
    assert not leader.ask_lease(A, 2)
    leader.commit(leader.proposed[1])
    assert leader.ask_lease(A, 3)
    late = leader.catalog.apply(99, leader.proposed[0])
    assert late.error == "PreconditionFailed"


def test_grants_wait_for_a_round_of_the_majority() -> None:
    """A leader without contact answers no lease request, and asks for a round."""
    leader = Leader(A, B)
    leader.contact = False
    assert not leader.ask_lease(A, 1)
    assert leader.last.wants_round
    leader.contact = True
    leader.step(ControllerTick())
    assert [answer.number for _, answer in leader.granted] == [1]
    assert not leader.last.wants_round


# --- Mirrors ----------------------------------------------------------------------------


def test_a_dead_mirror_is_removed_and_comes_back_as_a_joiner(leader: Leader) -> None:
    """The master stays; the new incarnation joins at the tail."""
    leader.kill(B)
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, C))]
    leader.start(again(B))
    assert leader.members() == in_sync(A, C) + joining(again(B))


def test_a_mirror_that_was_restarted_unnoticed_is_no_longer_in_sync(pair: Leader) -> None:
    """R4: a restarted node is out of every view until a new view lets it in."""
    pair.start(again(B))
    assert pair.members() == in_sync(A) + joining(again(B))


def test_a_silent_mirror_is_removed_after_failure_ms_and_returns_after_a_while() -> None:
    """Confirms stall no longer than the bound, and a shaky node does not flap."""
    leader = Leader(A, B)
    leader.declare(A, B)
    leader.stop(B)
    leader.run(1000)
    assert leader.members() == in_sync(A)
    leader.up[B] = ()
    leader.run(2500)
    assert leader.members() == in_sync(A)
    leader.run(1000)
    assert leader.members() == in_sync(A) + joining(B)


def test_a_new_node_joins_every_queue_and_a_witness_none() -> None:
    """ha-mode all: over all nodes that hold queues."""
    leader = Leader(A)
    leader.declare(A)
    leader.start(D)
    assert leader.members() == in_sync(A) + joining(D)


def test_a_forgotten_node_is_in_no_view(leader: Leader) -> None:
    """The others go on without it at once."""
    leader.stop(B)
    leader.commit(RemoveNode("b", B.store))
    leader.run(3000)
    assert leader.members() == in_sync(A, C)


# --- Links (R11) ------------------------------------------------------------------------


def test_mirrors_are_re_ordered_round_a_broken_link() -> None:
    """a-b-c-d with b-c broken: all stay in sync, in another order; and no flapping after."""
    leader = Leader(A, B, C, D)
    leader.declare(A, B, C, D)
    leader.up[B], leader.up[C] = ("c",), ("b",)
    leader.run(5000)
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B, D, C))]


def test_a_mirror_without_a_link_to_the_master_leaves_and_the_master_stays(leader: Leader) -> None:
    """Both reach the leader, so neither is dead; it comes back when the link has."""
    leader.up[A], leader.up[C] = ("c",), ("a",)
    leader.run(10_000)
    assert leader.proposed == [ChangeView(1, 1, in_sync(A, B))]
    leader.up[A] = leader.up[C] = ()
    leader.run(2500)
    assert len(leader.proposed) == 1
    leader.run(1000)
    assert leader.members() == in_sync(A, B) + joining(C)


def test_one_way_loss_is_noticed_within_the_bound(pair: Leader) -> None:
    """Only b misses a: after twice failure_ms b is out."""
    pair.up[B] = ("a",)
    pair.run(2000)
    assert pair.proposed == []
    pair.run(250)
    assert pair.members() == in_sync(A)


def test_a_master_that_does_not_hear_the_leader_is_replaced(pair: Leader) -> None:
    """It is heard, but neither a lease nor a view would reach it."""
    pair.up[A] = ("w",)
    pair.run(2500)
    assert pair.members() == in_sync(B)


# --- What ends with its process -----------------------------------------------------------


def test_an_exclusive_queue_goes_with_its_owner() -> None:
    """Deleted when its process is known dead, by its restart too; never promoted or mirrored."""
    for how in ("kill", "start"):
        leader = Leader(A, B)
        leader.declare(A, exclusive=True)
        leader.run(500)
        assert leader.proposed == []
        if how == "start":
            leader.start(again(A))
        else:
            leader.kill(A)
            assert leader.proposed == [DeleteQueue(1, is_drained=True)]
        leader.run(1500)
        assert leader.catalog.queues() == ()


def test_an_exclusive_queue_of_a_silent_owner_waits_for_it() -> None:
    """It may be cut off only: what it was confirmed is not thrown away."""
    leader = Leader(A, B)
    leader.declare(A, exclusive=True)
    leader.stop(A)
    leader.run(5000)
    assert leader.proposed == []
    leader.up[A] = ()
    leader.run(5000)
    assert leader.members() == in_sync(A)


def test_a_queue_that_is_not_durable_survives_its_master_and_not_a_full_stop() -> None:
    """Deleted when no member in sync of the last view still runs."""
    leader = Leader(A, B)
    leader.declare(A, B, durable=False)
    leader.kill(A)
    assert leader.members() == in_sync(B)
    leader.start(again(B))
    assert leader.proposed[2:] == [DeleteQueue(1, is_drained=True)]


def test_a_new_leader_does_not_give_up_who_did_not_hear_it_before() -> None:
    """It was cut off, is back, and is elected: that the others had not heard it for a while made
    it take all of them for down, and delete a queue that was not durable."""
    leader = Leader(A, B)
    leader.declare(A, B, durable=False)
    leader.term = 0
    leader.up[A] = leader.up[B] = ("w",)
    leader.run(3000)
    leader.term = 2
    leader.run(200)
    leader.up[A] = leader.up[B] = ()
    leader.run(3000)
    assert leader.proposed == []
    leader.up[A] = ("w",)
    leader.run(3000)
    assert leader.members() == in_sync(B)


# --- Requests of others -------------------------------------------------------------------


def admitted(
    leader: Leader, asker: MemberId, command: CatalogCommand, voters: tuple[StoreId, ...] = ()
) -> object:
    """Return the command admitted, or the error's text."""
    leading = Leading(leader.term, leader.own_term_applied, 1, leader.now_ms, voters)
    answer = leader.supervisor.admit(CatalogRequest(1, asker, command), leading)
    return answer.text if isinstance(answer, CatalogAnswer) else answer


def test_a_declaration_gets_its_first_view_from_who_is_running() -> None:
    """All in sync, the declarer first; with nobody running the asker tries again."""
    leader = Leader(A, B, C)
    leader.kill(C)
    asked = DeclareQueue("new", True, False, False, "b", None, ())
    assert admitted(leader, B, asked) == replace(asked, members=(B, A))
    empty = Leader()
    request = CatalogRequest(1, A, asked)
    answer = empty.supervisor.admit(request, Leading(1, True, 1, empty.now_ms))
    assert answer == CatalogAnswer(1, 0, retry=True)


def test_only_the_master_counts_a_joiner_in() -> None:
    """R12: the same proposal from anybody else is refused."""
    leader = Leader(A, B)
    leader.declare(A)
    assert leader.members() == in_sync(A) + joining(B)
    counted_in = ChangeView(1, 2, in_sync(A, B))
    assert admitted(leader, A, counted_in) == counted_in
    for other in (B, again(A)):
        assert "is not the master" in str(admitted(leader, other, counted_in))


def test_a_master_may_demote_remove_and_re_order_but_not_abdicate_or_add(leader: Leader) -> None:
    """R12, R9: replacing the master is the leader's, and so is taking a member in."""
    for members in (in_sync(A, C) + joining(B), in_sync(A, C, B), in_sync(A)):
        command = ChangeView(1, 1, members)
        assert admitted(leader, A, command) == command
    assert "is not the master" in str(admitted(leader, A, ChangeView(1, 1, in_sync(B, A))))
    assert "adds no members" in str(admitted(leader, A, ChangeView(1, 1, in_sync(A, D))))
    assert "adds no members" in str(admitted(leader, A, ChangeView(1, 1, in_sync(A), "clean")))
    assert "before one in sync" in str(
        admitted(leader, A, ChangeView(1, 1, in_sync(A) + joining(B) + in_sync(C)))
    )


def test_a_copy_may_go_when_nobody_can_need_it() -> None:
    """Not of a node that is to have one, nor of one that stops, nor for another node, nor while a
    wanted member is not in sync, nor while none in sync runs."""
    leader = Leader(A, B, C, D)
    leader.commit(SetPolicy("p", to_text(parse("p", "", {"ha-mode": "exactly", "ha-params": 2}))))
    leader.declare(A, B)
    drop = DropCopy(1, 1, C)
    assert admitted(leader, C, drop) == drop
    assert "speaks for another" in str(admitted(leader, D, drop))
    leader.step(LeaseRelease(C, 1))
    assert "about to stop" in str(admitted(leader, C, drop))
    leader.kill(B)
    leader.run(5000)
    assert leader.members() == in_sync(A) + joining(D)
    leader.start(again(C))
    epoch = leader.queue().view.epoch
    late = DropCopy(1, epoch, again(C))
    assert "d is not in sync" in str(admitted(leader, again(C), late))
    leader.commit(ChangeView(1, epoch, in_sync(A, D)))
    leader.start(again(B))
    assert admitted(leader, again(C), drop) == drop  # of an older epoch: refused when applied
    fresh = replace(late, epoch=epoch + 1)
    assert admitted(leader, again(C), fresh) == fresh
    leader.commits = False
    leader.stop(A)
    leader.stop(D)
    leader.run(2000)
    assert "may be needed" in str(admitted(leader, again(C), fresh))
    wanting = Leader(A, B, commits=False)
    wanting.declare(A)
    assert "is to have a copy" in str(admitted(wanting, B, DropCopy(1, 1, B)))


def test_nobody_is_counted_in_over_a_broken_link() -> None:
    """c joined behind d, and its link to b is broken: in sync beside b it would be thrown
    out at once, for ever."""
    leader = Leader(A, B, C, D)
    leader.declare(A, B)
    leader.up[B], leader.up[C] = ("c",), ("b",)
    leader.run(500)
    assert leader.members() == in_sync(A, B) + joining(D, C)
    epoch = leader.queue().view.epoch
    wrong = ChangeView(1, epoch, in_sync(A, B, C) + joining(D))
    assert "link between b and c" in str(admitted(leader, A, wrong))
    right = ChangeView(1, epoch, in_sync(A, B, D) + joining(C))
    assert admitted(leader, A, right) == right


def test_the_last_copy_in_sync_is_not_forgotten() -> None:
    """Refused while a queue has nothing else, unless forced; the store is filled in."""
    leader = Leader(A, B)
    leader.declare(A)
    leader.kill(B)
    assert admitted(leader, A, RemoveNode("b")) == RemoveNode("b", B.store)
    leader.start(again(B))
    leader.kill(A)
    assert "last copy in sync of 'q'" in str(admitted(leader, again(B), RemoveNode("a")))
    forced = RemoveNode("a", A.store, force=True)
    assert admitted(leader, again(B), RemoveNode("a", force=True)) == forced


def test_forgetting_by_force_waits_for_an_unclean_promotion() -> None:
    """Where the policy lets a copy that is not in sync go on, and one runs, the queue is not
    deleted with its only copy in sync: that copy is made master first."""
    leader = Leader(A, B, commits=False)
    leader.commit(DeclareQueue("q", True, False, False, "a", None, (A,)))
    leader.commit(ChangeView(1, 1, in_sync(A) + joining(B)))
    policy = parse("p", "", {"ha-promote-on-failure": "always"})
    leader.commit(SetPolicy("p", to_text(policy)))
    leader.kill(A)
    promotion = ChangeView(1, 2, in_sync(B), "unclean")
    assert leader.proposed[-1] == promotion
    assert admitted(leader, B, RemoveNode("a", force=True)) == ""  # tried again
    leader.commit(promotion)
    assert admitted(leader, B, RemoveNode("a", force=True)) == RemoveNode("a", A.store, True)


def test_a_store_that_voted_and_never_registered_is_forgotten() -> None:
    """Known by its vote only; with a record of an older store both go."""
    leader = Leader(A, B)
    votes = (StoreId("w", 1), StoreId("a", 2), StoreId("b", 30), StoreId("x", 40))
    assert admitted(leader, A, RemoveNode("x"), votes) == RemoveNode("x", voters=(40,))
    assert "no node 'x'" in str(admitted(leader, A, RemoveNode("x")))
    assert "node b is alive" in str(admitted(leader, A, RemoveNode("b"), votes))
    leader.kill(B)
    assert admitted(leader, A, RemoveNode("b"), votes) == RemoveNode("b", B.store, voters=(30,))


def test_a_node_that_may_run_is_not_forgotten() -> None:
    """Alive, in a newer incarnation too: refused. Silent: when its lease has run out, not before
    others have taken its queues over, and not while its machine may only be busy."""
    leader = Leader(A, B, commits=False)
    leader.commit(DeclareQueue("q", True, False, False, "a", None, (A, B)))
    assert "node a is alive" in str(admitted(leader, B, RemoveNode("a")))
    assert "alive" in str(admitted(leader, B, RemoveNode("w")))
    assert "no node 'x'" in str(admitted(leader, B, RemoveNode("x")))
    assert "no node 'a'" in str(admitted(leader, B, RemoveNode("a", 99)))
    leader.stop(A)
    leader.run(3000)
    assert admitted(leader, B, RemoveNode("a")) == ""  # tried again
    leader.commit(ChangeView(1, 1, in_sync(B), "clean"))
    assert admitted(leader, B, RemoveNode("a")) == ""  # not for long enough
    leader.run(3000)
    assert admitted(leader, B, RemoveNode("a")) == RemoveNode("a", A.store)
    leader.step(Heard(again(A)))
    assert "node a is alive" in str(admitted(leader, B, RemoveNode("a")))


def test_a_node_registers_itself_only() -> None:
    """Anything else would declare a living process dead."""
    leader = Leader(A, B)
    own = RegisterNode("b", B.store, 1, "tcp://b", False)
    assert admitted(leader, B, own) == own
    other = RegisterNode("a", A.store, 2, "tcp://a", False)
    assert "speaks for another node" in str(admitted(leader, B, other))


def test_a_replaced_catalog_is_judged_as_a_whole(pair: Leader) -> None:
    """A snapshot brings queues whose changes nobody told."""
    other = Catalog.restore(pair.catalog.snapshot())
    other.apply(90, DeclareQueue("r", True, False, False, "a", None, (A,)))
    pair.catalog = other
    pair.step(CatalogReplaced(other))
    assert pair.proposed == [ChangeView(2, 1, in_sync(A) + joining(B))]
    assert joining_ids(pair.queue(2).view) == (B,)


def test_unheard_names_the_silent_nodes_of_the_cluster() -> None:
    """What the signs of life say, with the own name never among it."""
    leader = Leader(A, B)
    leader.stop(A)
    leader.run(1250)
    assert leader.supervisor.unheard() == ("a",)
