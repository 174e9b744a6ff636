"""What `status()`, `nodes()` and `policies()` tell: frozen values.

Clients load this module too, and get such values as JSON; a node makes them in `node.status`.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen


@frozen
class QueueStatus:
    """One queue as one node knows it."""

    name: str
    """The queue's name."""
    state: str
    """running, syncing (a member is joining), down (no master runs), paused (this node has
    no contact with a majority)."""
    master: str | None = None
    """Name of the node that leads the queue; None while none runs. Of a sharded queue: of all
    that lead a shard."""
    mirrors: tuple[str, ...] = ()
    """In ring order, without the master."""
    synchronised_mirrors: tuple[str, ...] = ()
    """Those of the mirrors that are in sync: each confirm waits for them."""
    epoch: int = 0
    """Number of the view. It grows whenever the master, the members or who is in sync change."""
    messages: int = 0
    """Ready, unacknowledged and delayed."""
    messages_ready: int = 0
    """Waiting for a consumer."""
    messages_unacknowledged: int = 0
    """Held by consumers, those that a get() has fetched ahead included."""
    counts_age_ms: int = 0
    """How old the counts are: 0 on the master's node."""
    consumers: int = 0
    """How many are served: callbacks, and handles that get() or iterate."""
    policy: str | None = None
    """Name of the policy in force; None: no policy matches, the defaults hold."""
    sync_progress: float | None = None
    """0 to 1 while mirrors are being synchronised, all of them together; else None."""
    sync_messages_left: int = 0
    """Messages that these mirrors have yet to get."""
    sync_bytes_left: int = 0
    """Their bytes, judged by those that have come; 0 before the first ones."""
    sync_seconds_left: float | None = None
    """At the pace of the last seconds; None = not known."""
    store_bytes: int = 0
    """Bytes of this node's copy."""
    blocked_by: str = ""
    """Why puts wait, "" when they do not."""
    warnings: tuple[str, ...] = ()
    """What a user should know and do something about: "wanted 3 copies, have 2: why"."""
    messages_delayed: int = 0
    """Published or given back with a delay that has not ended."""
    messages_staged: int = 0
    """Staged, and shown by no commit yet; not counted as messages. As this node's copy has it."""
    bytes_staged: int = 0
    """Of their bodies."""
    exclusive: bool = False
    """Belongs to one handle, and is not mirrored."""
    shortfall: str = ""
    """What the policy wants and the queue has not: "wanted 3 copies, have 2: why", "" when it has
    all. Among the warnings, too."""
    messages_published: int = 0
    """Stored since the present master has its copy, as the next two: their growth is a rate, and
    they begin anew with another master or its restart."""
    messages_delivered: int = 0
    """Handed out, those that a get() fetches ahead included."""
    messages_acknowledged: int = 0
    """Acked, since the same moment."""
    shards: int = 0
    """Of a sharded queue: all counts are sums over its shards, `master` names all nodes that lead
    one, `state` is the worst of them. 0: it is not sharded."""
    arguments: dict[str, Any] = field(factory=dict, hash=False)
    """With which it was declared, by a policy's words, durations in ms. Where its policy says
    the same, the lesser number holds, and else the policy's word."""
    missing: tuple[str, ...] = ()
    """Nodes that the policy wants in the ring, that do not run and are out of it."""
    messages_lost: int = 0
    """Messages that unclean promotions are known to have lost, acknowledged ones too."""

    @classmethod
    def unknown(cls) -> QueueStatus:
        """Of a queue or a node that is no more."""
        return cls("", "down")


@frozen
class NodeStatus:
    """One node as another one sees it, at one moment."""

    name: str
    """The node's name."""
    endpoint: str
    """Where others reach it."""
    incarnation: int
    """Which start of this node it is: it grows at each one."""
    witness: bool
    """Votes, and has no copy of any queue."""
    alive: bool
    """Runs, as the node that was asked sees it."""
    leader: bool
    """Leads the catalog."""
    alarms: tuple[str, ...] = ()
    """Names of those that are raised there: docs/monitoring.md says what to do."""
    messages_spooled: int = 0
    """Accepted by its spools and not confirmed by their queues yet, as it last said. What clients
    spool is in their own `spooled()`."""
    spooled_oldest_s: int = 0
    """How long the oldest of them has waited, in seconds."""


@frozen
class PolicyStatus:
    """One policy, as it was given to `set_policy`."""

    name: str
    """The policy's name."""
    pattern: str
    """Regular expression for names of queues."""
    definition: dict[str, Any]
    """What it says: keys and values."""
    priority: int = 0
    """Of several that match a queue, the one with the highest is in force."""
    apply_to: str = "queues"
    """What it is for: queues."""
