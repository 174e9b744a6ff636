"""Any order of any events: what a leader proposes is well-formed and safe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.controller.controller import Controller
from mirrorq.cluster.controller.events import (
    CatalogChanged,
    ControllerTick,
    Heard,
    LinkBroken,
    ProbeRefused,
)
from mirrorq.cluster.controller.leases import Leading
from mirrorq.config import Config
from mirrorq.protocol.commands import (
    CatalogCommand,
    ChangeView,
    DeclareQueue,
    DeleteQueue,
    RegisterNode,
    RemoveNode,
)
from mirrorq.protocol.control import (
    CatalogAnswer,
    CatalogRequest,
    LeaseRelease,
    LeaseRequest,
    Yielded,
)
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import Member, View, find, in_sync_ids, links, make_view, order_error

CONFIG = Config(failure_ms=1000, heartbeat_ms=250, lease_ms=300)
OWN = MemberId("a", 1, 1)

names = st.sampled_from("abcd")
members = st.builds(MemberId, names, st.sampled_from([1, 2]), st.integers(1, 3))
numbers = st.integers(0, 5)
views = st.lists(st.builds(Member, members, st.booleans()), max_size=4).map(tuple)
commands: st.SearchStrategy[CatalogCommand] = st.one_of(
    st.builds(RegisterNode, names, st.just(1), numbers, st.just("x"), st.booleans()),
    st.builds(RemoveNode, names, st.just(1)),
    st.builds(DeleteQueue, st.integers(1, 3)),
    st.builds(ChangeView, st.integers(1, 3), numbers, views, st.sampled_from(["", "clean"])),
    st.builds(
        DeclareQueue,
        st.sampled_from("qr"),
        st.booleans(),
        st.booleans(),
        st.just(False),
        names,
        st.none(),
        st.just(()),
    ),
)
steps = st.one_of(
    st.just(ControllerTick()),
    st.integers(1, 1500),
    st.builds(Heard, members, st.lists(names, max_size=2).map(tuple)),
    st.builds(LinkBroken, names),
    st.builds(ProbeRefused, names, st.integers(0, 10)),
    st.builds(LeaseRequest, numbers, members),
    st.builds(LeaseRelease, members, numbers),
    st.builds(CatalogRequest, numbers, members, commands),
    st.sampled_from(["commit", "lose", "elect", "depose", "stale"]),
)


@given(st.lists(steps, max_size=80))
def test_any_order_of_events_is_well_formed_and_safe(script: list[object]) -> None:
    """Every view proposed is in order, needs no broken link that is known, names the present
    epoch, keeps a master that was in sync by store, and has nobody in sync who was not, in
    this very incarnation, except that master; and only a master's request may differ."""
    catalog = Catalog()
    for name in "abc":
        catalog.apply(1, RegisterNode(name, 1, 1, "x", False))
    first = tuple(MemberId(name, 1, 1) for name in "cba")
    catalog.apply(2, DeclareQueue("q", True, False, False, "c", None, first))
    supervisor = Controller(OWN, catalog, CONFIG, 0)
    now_ms, term, contact = 0, 1, True
    log: list[CatalogCommand] = []
    for step in script:
        leading = Leading(term, True, 5, now_ms if contact else -1) if term else None
        had_contact = contact
        event: object = ControllerTick()
        match step:
            case int():
                now_ms += step
            case CatalogRequest():
                answer = supervisor.admit(step, leading)
                if not isinstance(answer, CatalogAnswer):
                    check_admitted(catalog, step.member, answer)
                    log.append(answer)
            case "commit" if log:
                result = catalog.apply(3, log.pop(0))
                event = CatalogChanged(result.queues, result.nodes, result.redefines)
            case "lose":
                log.clear()
            case "elect":
                term += 1
            case "depose":
                term = 0
            case "stale":
                contact = not contact
            case str():
                continue
            case _:
                event = step
        effects = supervisor.step(now_ms, event, leading)  # type: ignore[arg-type]
        assert leading is not None or not (effects.propose or effects.send)
        assert effects.wake_at_ms is None or effects.wake_at_ms >= now_ms
        assert had_contact or not effects.send
        for command in effects.propose:
            check_proposed(catalog, supervisor, command)
            log.append(command)


def check_proposed(catalog: Catalog, supervisor: Controller, command: CatalogCommand) -> None:
    if isinstance(command, DeleteQueue):
        queue = catalog.queue(command.queue_id)
        assert queue is not None
        assert queue.exclusive or not queue.durable
        return
    assert isinstance(command, ChangeView)
    queue = catalog.queue(command.queue_id)
    assert queue is not None
    assert queue.view.epoch == command.replaces
    assert order_error(command.members) == ""
    view = View(command.replaces + 1, command.members)
    head, *mirrors = in_sync_ids(view)
    before = in_sync_ids(queue.view)
    assert (head.node, head.store) in [(one.node, one.store) for one in before]
    assert all(one in before for one in mirrors)
    assert command.how == "" if head == before[0] else command.how in ("clean", "cold")


def check_admitted(catalog: Catalog, asker: MemberId, command: CatalogCommand) -> None:
    if not isinstance(command, ChangeView):
        return
    queue = catalog.queue(command.queue_id)
    if queue is None or queue.view.epoch != command.replaces:
        return  # it fails when it is applied
    assert queue.view.members[0].id == command.members[0].id == asker
    assert all(find(queue.view, one.id) is not None for one in command.members)


@given(st.sets(st.sampled_from(["bc", "bd", "cd", "ab", "ac", "ad"])))
def test_any_broken_links_lead_to_one_view_and_no_flapping(broken: set[str]) -> None:
    """Scenario 33: whatever pairs do not hear each other, after one or two views nothing more
    is proposed, and the last view needs none of the broken links."""
    living = [MemberId(name, number, 1) for number, name in enumerate("abcd", 1)]
    catalog = Catalog()
    own = MemberId("w", 9, 1)
    for one in (own, *living):
        catalog.apply(1, RegisterNode(one.node, one.store, 1, "x", one == own))
    catalog.apply(2, DeclareQueue("q", True, False, False, "a", None, tuple(living)))
    supervisor = Controller(own, catalog, CONFIG, 0)
    last_change_ms = 0
    for now_ms in range(0, 40_000, 250):
        for one in living:
            others = [pair.replace(one.node, "") for pair in sorted(broken) if one.node in pair]
            unheard = tuple(others) if now_ms >= 2000 else ()
            leading = Leading(1, True, 5, now_ms)
            effects = supervisor.step(now_ms, Heard(one, unheard), leading)
            for command in effects.propose:
                assert catalog.apply(3, command).error == ""
                last_change_ms = now_ms
                effects = supervisor.step(now_ms, CatalogChanged((1,)), leading)
            for _, wanted in effects.yields:
                queue = catalog.queue(1)
                assert queue is not None
                promise = Yielded(1, wanted.epoch, queue.view.members[0].id)
                for command in supervisor.step(now_ms, promise, leading).propose:
                    assert catalog.apply(3, command).error == ""
                    last_change_ms = now_ms
                    supervisor.step(now_ms, CatalogChanged((1,)), leading)
    assert last_change_ms <= 3000
    queue = catalog.queue(1)
    assert queue is not None
    assert not [pair for pair in links(queue.view) if "".join(pair) in broken]
    assert queue.view.members[0].id == living[0]
    if not broken:
        assert queue.view == make_view(1, living, master_epoch=1)
