"""Results of `status()`, `nodes()` and `policies()`. Frozen.

A node makes the values in `node.status`. Clients load this module, too, and get the values as JSON.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen


@frozen
class QueueStatus:
    """One queue, as seen by a node."""

    name: str
    """The queue's name."""
    state: str
    """running, syncing (a member is joining), down (no master runs), paused (this node has
    no contact with a majority)."""
    master: str | None = None
    """Name of the node with the queue's master; None while no master runs. Of a sharded queue: the
    names of all nodes with a master of a shard."""
    mirrors: tuple[str, ...] = ()
    """Names of the nodes with a mirror, in ring order."""
    synchronised_mirrors: tuple[str, ...] = ()
    """Names of the nodes whose mirror is in sync. Each confirm waits for these mirrors."""
    epoch: int = 0
    """Number of the queue's view. The number grows when the master, a member or the set of members
    in sync changes."""
    messages: int = 0
    """Messages in the queue: ready, unacknowledged and delayed."""
    messages_ready: int = 0
    """Messages that wait for a consumer."""
    messages_unacknowledged: int = 0
    """Messages that consumers hold, including messages that a get() has fetched ahead."""
    counts_age_ms: int = 0
    """Age of the counts in milliseconds: 0 on the master's node."""
    consumers: int = 0
    """Number of callbacks, and of handles that wait in get() or hold a message which get() gave."""
    policy: str | None = None
    """Name of the policy in force; None: no policy matches, the defaults hold."""
    sync_progress: float | None = None
    """Share of the synchronisation that is done, of all mirrors together, from 0 to 1; None: every
    mirror is in sync."""
    sync_messages_left: int = 0
    """Messages that mirrors still have to receive."""
    sync_bytes_left: int = 0
    """Bytes of these messages, estimated from the messages received so far; 0 before the first."""
    sync_seconds_left: float | None = None
    """Seconds until all mirrors are in sync, at the rate of the last seconds; None: not known."""
    store_bytes: int = 0
    """Bytes of this node's copy on the disk."""
    blocked_by: str = ""
    """Why puts wait; "": puts do not wait."""
    warnings: tuple[str, ...] = ()
    """Sentences about faults that need an operator, such as "wanted 3 copies, have 2: why"."""
    messages_delayed: int = 0
    """Messages that were published or given back with a delay, which has not ended."""
    messages_staged: int = 0
    """Staged messages without a commit, in this node's copy. `messages` leaves them out."""
    bytes_staged: int = 0
    """Bytes of the bodies of the staged messages."""
    exclusive: bool = False
    """True: the queue belongs to one handle, and has no mirrors."""
    shortfall: str = ""
    """Which copies the policy wants and the queue lacks, such as "wanted 3 copies, have 2: why";
    "": none. The same sentence is among the warnings."""
    messages_published: int = 0
    """Messages stored since the master's copy was opened. The growth of this count, and of the next
    two, is a rate. All three begin at 0 with another master, or when the master restarts."""
    messages_delivered: int = 0
    """Messages handed to consumers since then. Messages fetched ahead are included."""
    messages_acknowledged: int = 0
    """Messages acked since then."""
    shards: int = 0
    """Number of shards; 0: the queue is not sharded. Of a sharded queue every count is the sum over
    the shards, and `state` is the worst state of a shard."""
    arguments: dict[str, Any] = field(factory=dict, hash=False)
    """Arguments of the queue's declaration, by the keys of a policy, durations in milliseconds.
    Where the policy has the same key, the lesser number holds; of words the policy's."""
    missing: tuple[str, ...] = ()
    """Names of nodes that the policy wants as members, and that do not run."""
    messages_lost: int = 0
    """Messages that unclean promotions have lost, as far as is known. Acked messages count too."""
    deliveries_paused: bool = False
    """True: `pause()` was called, and `resume()` was not. The queue hands out no message."""

    @classmethod
    def unknown(cls) -> QueueStatus:
        """Return the status of a queue or a node that no longer exists."""
        return cls("", "down")


@frozen
class NodeStatus:
    """One node at one moment, seen by another node."""

    name: str
    """The node's name."""
    endpoint: str
    """Endpoint at which other nodes reach this node."""
    incarnation: int
    """Number of the node's start. The number grows with each start."""
    witness: bool
    """True: the node votes, and has no copy of a queue."""
    alive: bool
    """True: the node runs, as far as the answering node knows."""
    leader: bool
    """True: the node leads the catalog."""
    alarms: tuple[str, ...] = ()
    """Names of the alarms raised at the node: docs/monitoring.md has advice."""
    messages_spooled: int = 0
    """Messages that the node's spools have accepted and their queues have not confirmed yet. The
    messages of a client's spool are in the client's own `spooled()`."""
    spooled_oldest_s: int = 0
    """Seconds that the oldest of these messages has waited."""


@frozen
class PolicyStatus:
    """One policy, as given to `set_policy`."""

    name: str
    """The policy's name."""
    pattern: str
    """Regular expression for names of queues."""
    definition: dict[str, Any]
    """The policy's keys and values."""
    priority: int = 0
    """If several policies match a queue, the policy with the highest priority is in force."""
    apply_to: str = "queues"
    """Kind of objects that the policy applies to: queues."""
