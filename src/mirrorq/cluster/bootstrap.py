"""How named peers with empty stores become one cluster, exactly once.

Pure: `effects = founding.step(now_ms, event)`. A *founding* is the tuple of the (name, store id) of
all first voters. The node with the lowest name coordinates:

1. Each node learns the store ids of its peers from hellos.
2. When the coordinator knows an unfounded store for each name, the coordinator proposes.
3. Each other node compares the proposal with its own `peers`. It syncs a *promise* to disk
   before it answers.
4. When all nodes have promised exactly the proposal, the coordinator syncs the decision, and
   only then sends it. Each node starts with these voters.

Why two foundings never share a store:

- A promise binds a store for ever to one coordinator's *store*: only the coordinator's
  decision counts. The same coordinator's store may propose anew (a peer was wiped before its
  answer), and the promise moves along.
- A coordinator decides once: a write founds its own store before any node learns of the
  decision. A founded store neither proposes nor promises.

So a wiped peer delays a founding and does not end it. Help is needed only when the *coordinator's*
store is lost between the first promise and the announcement of the decision: the promised nodes
cannot know the decision. `stuck` then holds the cause and the remedy. (If a promise named one
founding for ever, every wiped peer would need help.)

An empty store next to a founded peer never founds, but asks for admission. The leader admits only
stores with a request: a promised store may still be founded elsewhere.

Not its task: the machine never starts over by itself, and does not judge which nodes live.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from mirrorq.cluster.raft.messages import decode_voters, encode_voters
from mirrorq.config import Config
from mirrorq.protocol.founding import (
    FOUNDING_MESSAGES,
    AdmissionRequest,
    FoundingDone,
    FoundingMessage,
    FoundingPromise,
    FoundingProposal,
    FoundingRefused,
    Members,
)
from mirrorq.protocol.identities import StoreId

__all__ = [
    "FOUNDING_MESSAGES",
    "AdmissionRequest",
    "Founded",
    "Founding",
    "FoundingDone",
    "FoundingEffects",
    "FoundingEvent",
    "FoundingMessage",
    "FoundingPromise",
    "FoundingProposal",
    "FoundingReceived",
    "FoundingRefused",
    "FoundingTick",
    "PeerHello",
    "joining",
    "joins_through",
]

# --- Events and effects -------------------------------------------------------------------


class FoundingTick(Struct, frozen=True, gc=False):
    """The time that the founding asked for (`wake_at_ms`) has come."""


class PeerHello(Struct, frozen=True, gc=False):
    """A peer's hello gave its store; most repeated hellos change nothing."""

    store: StoreId
    founded: bool


class FoundingReceived(Struct, frozen=True, gc=False):
    """A message about the founding has come from another node's store."""

    sender: StoreId
    message: FoundingMessage


class Founded(Struct, frozen=True, gc=False):
    """Raft has voters, by a snapshot from a leader. To be stepped in the same round."""


FoundingEvent = FoundingTick | PeerHello | FoundingReceived | Founded


class FoundingEffects(Struct, frozen=True, gc=False):
    """Effects of one step, to be done in the order of the fields."""

    promise: bytes | None = None
    """Step Raft's `Promise` with these bytes: the write is synced before any send."""
    found: Members | None = None
    """Step Raft's `Found` with these voters: the write is synced before any send."""
    send: tuple[tuple[StoreId, FoundingMessage], ...] = ()
    admit: tuple[StoreId, ...] = ()
    """Stores that ask to be voters. A leading node first removes another store of the same name,
    then adds."""
    wake_at_ms: int | None = None


_PROMISED = b"\x00"
_DECIDED = b"\x01"
_JOINS = b"\x02"
"""First byte of the value on disk; the members follow. A store founded by Raft's snapshot knows
only its promise, and must not send the promise as a decision. `_JOINS`: the store founds nothing
but joins, through the endpoints that follow."""


def joining(endpoints: tuple[str, ...]) -> bytes:
    """Return the promise of a store which is to join a cluster through the endpoints."""
    return _JOINS + ",".join(endpoints).encode()


def joins_through(promised: bytes) -> tuple[str, ...]:
    """Return the endpoints of a joining promise, () of any other promise."""
    if promised[:1] != _JOINS:
        return ()
    return tuple(promised[1:].decode(errors="replace").split(","))


# --- The machine --------------------------------------------------------------------------


class Founding:
    """The part of one node in the founding of its cluster."""

    def __init__(
        self,
        store: StoreId,
        peers: tuple[str, ...],
        promised: bytes,
        config: Config,
        *,
        founded: bool,
        may_found: bool = True,
    ) -> None:
        """Continue from the state on disk.

        Args:
            store: The store of this node.
            peers: Names of all nodes to found with; the own name may be left out.
            promised: `RaftState.founding`, as a `promise` of an earlier incarnation left it.
            config: `heartbeat_ms` and `election_ms` are used.
            founded: Raft has voters.
            may_found: False for a node that is to join a cluster and never to found a new one.
        """
        self.store = store
        self.names = tuple(sorted({store.node, *peers}))
        self.founded = founded
        self.stuck = ""
        """Why founding cannot go on, with the remedy; "" = no known obstacle."""
        is_promise = promised[:1] in (_PROMISED, _DECIDED)
        self._promised: Members = (decode_voters(promised[1:]) or ()) if is_promise else ()
        """Members of the promise on disk, or of the decision when known."""
        self._is_decided = promised[:1] == _DECIDED
        self._config = config
        self._may_found = may_found
        self._known: dict[str, PeerHello] = {}
        """The last hello of each name but the own."""
        self._proposal: Members = ()
        self._promises: dict[StoreId, bool] = {}
        self._is_void = False
        """The promised coordinator has decided without this store."""
        self._repeat_at_ms = 0
        # Effects of the present step:
        self._promise: bytes | None = None
        self._found: Members | None = None
        self._send: list[tuple[StoreId, FoundingMessage]] = []
        self._admit: list[StoreId] = []

    # --- What others may ask --------------------------------------------------------------

    @property
    def needs_admission(self) -> bool:
        """Return true if this store may only join an existing cluster."""
        if self.founded or (self._promised and not self._is_void):
            return False
        is_old_peer = any(hello.founded for hello in self._known.values())
        return is_old_peer or self._is_void or not self._may_found

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Names of the peers without which founding cannot go on now."""
        if self.founded or self.needs_admission:
            return ()
        if self._promised:
            return (self._promised[0].node,)
        return tuple(
            name for name in self.names if name != self.store.node and not self._is_ready(name)
        )

    # --- Stepping -------------------------------------------------------------------------

    def step(self, now_ms: int, event: FoundingEvent) -> FoundingEffects:
        """Take one event and return its effects."""
        getattr(self, _HANDLERS[type(event)])(event)
        self._propose()
        if now_ms >= self._repeat_at_ms:
            self._repeat(now_ms)
        effects = FoundingEffects(
            promise=self._promise,
            found=self._found,
            send=tuple(self._send),
            admit=tuple(self._admit),
            wake_at_ms=self._repeat_at_ms if self._repeats else None,
        )
        self._promise, self._found = None, None
        self._send.clear()
        self._admit.clear()
        return effects

    def _on_tick(self, event: FoundingTick) -> None:
        """Proposing and repeating follow every event."""

    def _on_founded(self, event: Founded) -> None:
        self.founded = True
        self.stuck = ""

    def _on_hello(self, event: PeerHello) -> None:
        name = event.store.node
        if name == self.store.node:
            return
        if self._known.get(name) == event:
            return
        self._known[name] = event
        self._repeat_at_ms = 0
        if self._promised and not self.founded and not self._is_void:
            coordinator = self._promised[0]
            if name == coordinator.node:
                self._note_coordinator(coordinator, event.store)

    def _note_coordinator(self, promised: StoreId, met: StoreId) -> None:
        if met == promised:
            self.stuck = ""
            return
        self.stuck = (
            f"node {self.store.node} has promised to be founded by {promised.node}'s store "
            f"{promised.store}, but {promised.node} now has store {met.store}. Bring the old "
            f"store back; if it is lost, and no node of the cluster is founded, stop the nodes "
            f"{', '.join(self.names)}, delete their stores (they hold no message yet) and "
            "start them again"
        )

    def _on_received(self, event: FoundingReceived) -> None:
        handler = _MESSAGE_HANDLERS.get(type(event.message))
        if handler is not None and event.sender != self.store:
            getattr(self, handler)(event.sender, event.message)

    # --- As coordinator -------------------------------------------------------------------

    @property
    def _coordinates(self) -> bool:
        is_free = not self.founded and not self._promised and not self.needs_admission
        return is_free and self.names[0] == self.store.node

    def _is_ready(self, name: str) -> bool:
        hello = self._known.get(name)
        return hello is not None and not hello.founded

    def _propose(self) -> None:
        """Propose the stores of the latest hellos; found the cluster when all have promised."""
        if not self._coordinates or self.waiting_for:
            self._proposal = ()
            return
        members = tuple(
            self.store if name == self.store.node else self._known[name].store
            for name in self.names
        )
        if members != self._proposal:
            self._proposal = members
            self._promises = {self.store: True}
            self.stuck = ""
            for member in members:
                self._tell(member, FoundingProposal(members))
        if len(self._promises) == len(members):
            self._become_founded(members)
            for member in members:
                self._tell(member, FoundingDone(members))

    def _on_promise(self, sender: StoreId, message: FoundingPromise) -> None:
        if self.founded:
            self._tell_decision(sender)
        elif self._proposal and message.members == self._proposal and sender in self._proposal:
            self._promises[sender] = True
            self.stuck = ""
        elif self._proposal and message.members and message.members[0] != self.store:
            self._note_foreign_promise(sender, message.members[0])

    def _note_foreign_promise(self, sender: StoreId, coordinator: StoreId) -> None:
        self.stuck = (
            f"node {sender.node} has promised to be founded by {coordinator.node}'s store "
            f"{coordinator.store}, not by {self.store.node}'s store {self.store.store}. Bring "
            f"that store back; if it is lost, and no node of the cluster is founded, delete "
            f"the store of {sender.node} (it holds no message yet) and start it again"
        )

    def _on_refused(self, sender: StoreId, message: FoundingRefused) -> None:
        if not self.founded:
            self.stuck = f"node {sender.node} refuses to found the cluster: {message.text}"

    # --- As one of the others -------------------------------------------------------------

    def _on_proposal(self, sender: StoreId, message: FoundingProposal) -> None:
        members = message.members
        if self.founded:
            self._tell_decision(sender)
            return
        if not _is_founding(members) or members[0] != sender:
            return
        text = self._objection(members)
        if text:
            self.stuck = text
            self._tell(sender, FoundingRefused(text))
        elif self._promised and self._promised[0] != sender:
            self._tell(sender, FoundingPromise(self._promised))
        elif self.store in members and not self.needs_admission:
            if members != self._promised:
                self._promised = members
                self._promise = _PROMISED + encode_voters(members)
            self.stuck = ""
            self._tell(sender, FoundingPromise(members))

    def _objection(self, members: Members) -> str:
        names = tuple(member.node for member in members)
        if names == self.names:
            return ""
        return (
            f"{names[0]} has peers {', '.join(names)}, but {self.store.node} has "
            f"{', '.join(self.names)}. Give all nodes the same peers"
        )

    def _on_done(self, sender: StoreId, message: FoundingDone) -> None:
        members = message.members
        if self.founded or not _is_founding(members):
            return
        self._known[sender.node] = PeerHello(sender, True)
        if not self._promised:
            return
        if members[0] != self._promised[0]:
            self.stuck = (
                f"node {self.store.node} has promised to be founded by {self._promised[0].node}, "
                f"but {sender.node} belongs to a cluster founded by {members[0].node}. If "
                f"{self.store.node} is to join that cluster, delete its store (it holds no "
                "message yet) and start it again"
            )
        elif self.store in members:
            # The coordinator's decision counts, even if the promise has moved on since.
            self._become_founded(members)
        else:
            self._is_void = True
            self.stuck = ""

    def _become_founded(self, members: Members) -> None:
        self._promised = members
        self._is_decided = True
        self._promise = _DECIDED + encode_voters(members)
        self._proposal = ()
        self._found = members
        self.founded = True
        self.stuck = ""

    # --- Admission ------------------------------------------------------------------------

    def _on_admission_request(self, sender: StoreId, message: AdmissionRequest) -> None:
        if self.founded:
            self._admit.append(sender)

    # --- Saying it again ------------------------------------------------------------------

    @property
    def _repeats(self) -> bool:
        return not self.founded and bool(self._proposal or self._promised or self.needs_admission)

    def _repeat(self, now_ms: int) -> None:
        """Ask again until this store is founded, as messages may be lost."""
        if not self._repeats:
            return
        if self._proposal:
            self._repeat_at_ms = now_ms + self._config.heartbeat_ms
            for member in self._proposal:
                if member not in self._promises:
                    self._tell(member, FoundingProposal(self._proposal))
            return
        self._repeat_at_ms = now_ms + self._config.election_ms
        for hello in self._known.values():
            if self.needs_admission:
                if hello.founded:
                    self._tell(hello.store, AdmissionRequest(not self._may_found))
            else:
                # The coordinator counts the promise; a founded store answers with the decision.
                self._tell(hello.store, FoundingPromise(self._promised))

    def _tell_decision(self, target: StoreId) -> None:
        if self._is_decided:
            self._tell(target, FoundingDone(self._promised))

    def _tell(self, target: StoreId, message: FoundingMessage) -> None:
        if target != self.store and (target, message) not in self._send:
            self._send.append((target, message))


def _is_founding(members: Members) -> bool:
    names = [member.node for member in members]
    return bool(members) and all(a < b for a, b in pairwise(names))


_HANDLERS: dict[type, str] = {
    FoundingTick: "_on_tick",
    PeerHello: "_on_hello",
    FoundingReceived: "_on_received",
    Founded: "_on_founded",
}

_MESSAGE_HANDLERS: dict[type, str] = {
    FoundingProposal: "_on_proposal",
    FoundingPromise: "_on_promise",
    FoundingDone: "_on_done",
    FoundingRefused: "_on_refused",
    AdmissionRequest: "_on_admission_request",
}
