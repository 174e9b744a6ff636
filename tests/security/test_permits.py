"""What each request of a client needs, against a catalog that is played."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import pytest
from attrs import define
from hypothesis import given
from hypothesis import strategies as st

from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.node.permissions import Permits, lost_right
from mirrorq.protocol.clients import (
    ClientAdminister,
    ClientCall,
    ClientDeclare,
    ClientDelete,
    ClientLook,
    ClientRead,
    ClientSeek,
    ClientWatch,
)
from mirrorq.protocol.commands import (
    AcknowledgeLosses,
    Administrative,
    Bind,
    ClearPolicy,
    DeclareExchange,
    DeleteExchange,
    Rebalance,
    RemoveNode,
    SetPolicy,
    Synchronise,
    TransferMaster,
    Unbind,
)
from mirrorq.protocol.ops import FLAG_STAGED, FLAG_STEP, Step
from mirrorq.protocol.routing import Binding, ExchangeRecord
from mirrorq.protocol.sessions import (
    Attach,
    Browse,
    Credit,
    Delivery,
    Detach,
    Inquire,
    OpenProducer,
    Ping,
    Publish,
    Purge,
    Recalled,
    Request,
    Settle,
    Subscribe,
    Unsubscribe,
)
from mirrorq.protocol.staged import AbortOp, AskOp, CommitOp, SealOp, Stage, Staging
from mirrorq.security.roles import Key, Right
from mirrorq.transport.curve import new_key_pair
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.ops import FrameCodec, encode_staged, encode_step

PUBLIC = new_key_pair()[0]
OWN, OTHER, UNKNOWN, GONE = 1, 2, 3, 4
NAMES = {OWN: "own", OTHER: "other"}
READ, WRITE, CONFIGURE = Right.READ, Right.WRITE, Right.CONFIGURE
PIECE = (Delivery(1, 1, 1, 1, 1),)


@define
class Record:
    id: int
    name: str


class FakeCatalog:
    """Two queues, and exchanges."""

    def __init__(self, *exchanges: ExchangeRecord) -> None:
        self.applied_index = 1
        self.found = exchanges

    def queue(self, queue_id: int) -> Record | None:
        return Record(queue_id, NAMES[queue_id]) if queue_id in NAMES else None

    def queue_named(self, name: str) -> Record | None:
        return next((Record(i, each) for i, each in NAMES.items() if each == name), None)

    def sharded_named(self, name: str) -> None:
        """None is sharded."""

    def is_deleted(self, queue_id: int) -> bool:
        return queue_id == GONE

    def home_of(self, queue_id: int) -> None:
        """None is a shard."""

    def name_of(self, queue_id: int) -> str:
        return NAMES.get(queue_id, "")

    def queues(self) -> list[Record]:
        return [Record(queue_id, name) for queue_id, name in NAMES.items()]

    def exchanges(self) -> tuple[ExchangeRecord, ...]:
        return self.found


@pytest.mark.parametrize(
    ("most", "shards", "is_refused"),
    [(2, 0, True), (3, 0, False), (4, 2, False), (4, 3, True), (0, 0, True)],
)
def test_a_key_makes_so_many_queues_and_no_more(most: int, shards: int, is_refused: bool) -> None:
    """Those that match its patterns count, whoever made them; what is there is given to it."""
    key = Key("web", PUBLIC, "client", configure=["*"], queues=most)
    allowed = Permits(key, cast(Catalog, FakeCatalog()), FrameCodec())
    why = allowed.refusal_of_call(asked(ClientDeclare("new", True, False, False, False, 0, shards)))
    assert bool(why) is is_refused
    if why:
        assert "there are 2 queues" in why
        assert f"it may have {most}" in why
    assert allowed.refusal_of_call(asked(declare("own"))) == ""
    narrow = Key("web", PUBLIC, "client", configure=["new*", "own"], queues=2)
    few = Permits(narrow, cast(Catalog, FakeCatalog()), FrameCodec())
    assert few.refusal_of_call(asked(declare("new"))) == ""


def permits(catalog: FakeCatalog | None = None, **patterns: list[str]) -> Permits:
    key = Key("web", PUBLIC, "client", **patterns)
    return Permits(key, cast(Catalog, catalog or FakeCatalog()), FrameCodec())


def with_rights(rights: set[tuple[Right, int]]) -> Permits:
    """A key that has just these, each by the queue's whole name."""
    patterns = {
        right.value: [name for queue_id, name in NAMES.items() if (right, queue_id) in rights]
        for right in Right
    }
    return permits(**patterns)


def publish(bodies: list[bytes], flags: int = 0) -> Publish:
    return Publish(pack_publish(bodies, producer=1, first_number=1, settled=0, flags=flags), True)


def step(target: int, *bodies: bytes) -> Publish:
    made = publish([encode_step(Step(((1, 1),), target)), *bodies], FLAG_STEP)
    return Publish(made.frame, True, PIECE)


def staged(asked: Stage | Staging, *bodies: bytes) -> Publish:
    return publish([encode_staged(asked), *bodies], FLAG_STEP | FLAG_STAGED)


REQUESTS: list[tuple[Request, set[tuple[Right, int]]]] = [
    (publish([b"x"]), {(WRITE, OWN)}),
    (Publish(publish([b"x"]).frame, True, PIECE), {(WRITE, OWN), (READ, OWN)}),
    (step(0, b"x"), {(WRITE, OWN), (READ, OWN)}),
    (step(0), {(READ, OWN)}),
    (step(OTHER, b"x"), {(READ, OWN), (WRITE, OTHER)}),
    (staged(Stage("t", 0, "r", 1, 1, 1), b"x"), {(WRITE, OWN)}),
    (staged(SealOp("t", 0, "r", (), OTHER)), {(WRITE, OWN), (WRITE, OTHER)}),
    (staged(CommitOp("t", 0, "r")), {(WRITE, OWN)}),
    (staged(CommitOp("t", 0, "r", others=(OTHER,))), {(WRITE, OWN), (WRITE, OTHER)}),
    (staged(AbortOp("t", 0, "r", others=(OTHER,))), {(WRITE, OWN), (WRITE, OTHER)}),
    (staged(AskOp("t", 0, "r", OTHER)), {(WRITE, OWN), (WRITE, OTHER)}),
    (Subscribe(0, 1), {(READ, OWN)}),
    (Unsubscribe(0), {(READ, OWN)}),
    (Credit(0, 1), {(READ, OWN)}),
    (Settle(1, "ack", PIECE), {(READ, OWN)}),
    (Settle(1, "nack", PIECE), {(READ, OWN)}),
    (Settle(1, "giveback", PIECE), {(READ, OWN)}),
    (Settle(1, "move", PIECE, target=OTHER), {(READ, OWN), (WRITE, OTHER)}),
    (Browse(1, 1, 1), {(READ, OWN)}),
    (Purge(1), {(READ, OWN)}),
    (Recalled(1), {(READ, OWN)}),
]
ALL = set(product(Right, NAMES))


@pytest.mark.parametrize(("request_", "needs"), REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_needs_just_these_rights(
    request_: Request, needs: set[tuple[Right, int]]
) -> None:
    """With them it is allowed; with everything but one of them it is not."""
    assert with_rights(needs).refusal_of_request(OWN, request_) == ""
    for missing in needs:
        text = with_rights(ALL - {missing}).refusal_of_request(OWN, request_)
        assert f"may not {missing[0].value} queue {NAMES[missing[1]]!r}" in text


@given(
    case=st.sampled_from(REQUESTS),
    rights=st.sets(st.sampled_from(sorted(ALL))),
    queue_id=st.sampled_from([OWN, UNKNOWN]),
)
def test_any_rights_allow_just_what_they_cover(
    case: tuple[Request, set[tuple[Right, int]]],
    rights: set[tuple[Right, int]],
    queue_id: int,
) -> None:
    """Over all sets of rights; on a queue that is not known nothing is allowed."""
    request, needs = case
    refused = bool(with_rights(rights).refusal_of_request(queue_id, request))
    assert refused == (queue_id == UNKNOWN or not needs <= rights)


@pytest.mark.parametrize("request_", [Attach((), 0), OpenProducer(), Inquire(1), Detach(), Ping()])
@pytest.mark.parametrize("right", list(Right))
def test_what_changes_nothing_needs_any_right(request_: Request, right: Right) -> None:
    """On this very queue."""
    assert with_rights({(right, OWN)}).refusal_of_request(OWN, request_) == ""
    assert with_rights({(right, OTHER)}).refusal_of_request(OWN, request_)


@pytest.mark.parametrize(
    "frame",
    [
        publish([b"no step"], FLAG_STEP).frame,
        publish([b"no stage"], FLAG_STEP | FLAG_STAGED).frame,
    ],
)
def test_a_publish_that_cannot_be_read_is_refused(frame: bytes) -> None:
    """Never allowed for want of understanding, and nothing is raised."""
    allowed = permits(read=["*"], write=["*"], configure=["*"])
    assert allowed.refusal_of_request(OWN, Publish(frame, True))


def asked(call: Any) -> ClientCall:
    return ClientCall(1, call)


def declare(name: str, *, passive: bool = False) -> ClientDeclare:
    return ClientDeclare(name, True, False, False, passive)


def declare_with(arguments: str) -> ClientDeclare:
    return ClientDeclare("new", True, False, False, False, 0, 0, arguments)


@pytest.mark.parametrize(
    ("call", "enough", "too_little"),
    [
        (declare("own"), {"read": ["own"]}, {"read": ["other"], "write": ["other"]}),
        (declare("own", passive=True), {"write": ["own"]}, {"configure": ["other"]}),
        (declare("new"), {"configure": ["new"]}, {"read": ["new"], "write": ["new"]}),
        (declare("new", passive=True), {"read": ["n*"]}, {"read": ["own"]}),
        (
            declare_with('{"dead-letter-queue":"dead"}'),
            {"configure": ["new"], "write": ["dead"]},
            {"configure": ["new"], "write": ["new"], "read": ["*"]},
        ),
        (declare_with('{"max-length":5}'), {"configure": ["new"]}, {"write": ["new"]}),
        (ClientDelete(OWN, False), {"configure": ["own"]}, {"read": ["*"], "write": ["*"]}),
        (ClientRead(OWN, 1, 2, 0, 0), {"read": ["own"]}, {"write": ["*"], "configure": ["*"]}),
        (ClientSeek(OWN, 1, 0), {"read": ["own"]}, {"write": ["*"], "configure": ["*"]}),
        (ClientWatch("events", 0, 0), {"write": ["events"]}, {"write": ["own"]}),
        (ClientLook("status", OWN), {"read": ["own"]}, {"read": ["other"]}),
        (ClientLook("queues"), {}, None),
        (ClientLook("nodes"), None, {"read": ["*"], "write": ["*"], "configure": ["*"]}),
        (ClientLook("policies"), None, {"read": ["*"], "write": ["*"], "configure": ["*"]}),
    ],
)
def test_a_call_needs_its_right(
    call: Any, enough: dict[str, list[str]] | None, too_little: dict[str, list[str]] | None
) -> None:
    """None: no patterns are enough, or too little."""
    if enough is not None:
        assert permits(**enough).refusal_of_call(asked(call)) == ""
    if too_little is not None:
        assert "'web'" in permits(**too_little).refusal_of_call(asked(call))


@pytest.mark.parametrize(
    "command",
    [
        SetPolicy("p", "{}"),
        ClearPolicy("p"),
        TransferMaster("own", "a"),
        Rebalance(),
        RemoveNode("a"),
        Synchronise("own", True),
        AcknowledgeLosses("own", 1),
    ],
)
def test_administration_is_for_admins(command: Administrative) -> None:
    everything = permits(read=["*"], write=["*"], configure=["*"])
    assert "role admin" in everything.refusal_of_call(asked(ClientAdminister(command)))


def test_exchanges_are_configured_by_their_names() -> None:
    """And who binds a queue must be allowed to write it: binding gives others that right."""
    for command in (
        DeclareExchange("events", "fanout"),
        DeleteExchange("events"),
        Unbind("events", "own", "", ""),
    ):
        call = asked(ClientAdminister(command))
        assert permits(configure=["events"]).refusal_of_call(call) == ""
        assert permits(configure=["own"], write=["*"]).refusal_of_call(call)
    call = asked(ClientAdminister(Bind("events", "own", "", "")))
    assert permits(configure=["events"], write=["own"]).refusal_of_call(call) == ""
    assert permits(configure=["*"], write=["events"]).refusal_of_call(call)
    assert permits(configure=["own"], write=["own"]).refusal_of_call(call)


def test_who_may_write_an_exchange_may_write_what_is_bound_to_it() -> None:
    """As long as it is bound: what was found is forgotten when the catalog changes."""
    catalog = FakeCatalog(ExchangeRecord("events", "fanout", bindings=(Binding(OWN),)))
    client = permits(catalog, write=["events"])
    assert client.refusal_of_request(OWN, publish([b"x"])) == ""
    assert client.refusal_of_request(OTHER, publish([b"x"]))
    assert client.refusal_of_request(OWN, Browse(1, 1, 1))
    assert client.sees(OWN)
    assert not client.sees(OTHER)
    catalog.found = ()
    catalog.applied_index += 1
    assert client.refusal_of_request(OWN, publish([b"x"]))


def test_a_right_that_is_lost_is_told() -> None:
    """To a session that has needed it, or that may do nothing any more. What was gained, or never
    had, is not lost."""
    some = permits(read=["own"])
    more = permits(read=["own"], write=["own"])
    both = (READ, WRITE)
    assert lost_right(some, more, OWN, both) == ""
    assert lost_right(some, None, OWN, both) == ""
    assert "may not write" in lost_right(more, some, OWN, both)
    assert lost_right(more, some, OWN, (READ,)) == ""
    makers = permits(write=["*"], configure=["*"])
    assert "may not read" in lost_right(None, makers, OWN, both)
    assert lost_right(None, makers, OWN, (WRITE,)) == ""
    assert lost_right(None, more, OWN, both) == "", "nothing that a session does needs configure"
    assert "may not read" in lost_right(more, permits(), OWN, (READ,))
    assert lost_right(more, permits(), OWN, ())
    assert lost_right(more, some, OTHER, both) == ""


def test_a_queue_that_is_not_known_yet_is_told_from_one_that_was_deleted() -> None:
    """Nothing is refused of a queue that is no more: the catalog or the master answers."""
    none = permits()
    assert [none.is_known(one) for one in (OWN, UNKNOWN, GONE)] == [True, False, True]
    assert none.refusal_of_call(asked(ClientDelete(GONE, False))) == ""
    assert none.refusal_of_request(GONE, publish([b"m"])) == ""
    assert none.refusal_of_request(UNKNOWN, publish([b"m"]))
    mover = permits(read=["own"], write=["own"])
    assert not mover.are_known(OWN, Settle(1, "move", PIECE, target=UNKNOWN))
    assert mover.are_known(OWN, Settle(1, "move", PIECE, target=GONE))
