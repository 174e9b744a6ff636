"""Administration of a cluster, beside its queues: the same calls on `Node` and on `Client`.

Each call is checked here, before anything is sent, and becomes one command of the catalog. The call
returns when the serving node has applied the command. From then on the node answers and acts by the
new state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from mirrorq import clock, errors
from mirrorq.api.arguments import check_flags, check_sequence, check_text
from mirrorq.errors import (
    ConfigError,
    MirrorQError,
    PolicyError,
    PreconditionFailed,
    ProtocolError,
    QueueNotFound,
)
from mirrorq.monitoring.presence import Attendance, ClientStatus, ConsumerStatus
from mirrorq.monitoring.status import NodeStatus, PolicyStatus, QueueStatus
from mirrorq.protocol import commands
from mirrorq.protocol.clients import (
    AnyCall,
    ClientAdminister,
    ClientAnswer,
    ClientDisconnect,
    ClientLook,
)
from mirrorq.protocol.policy import NAME_CHARS_MAX, parse, to_text

# Waiting until the mirrors of a queue are in sync, by repeated calls of `queues()`.
LOOK_S = 0.1
"""Seconds between two looks."""
GRACE_LOOKS = 50
"""So many consecutive looks with a fault make an error. An unreachable mirror gets the time to come
back, and a client's next entry node to catch up."""


class Waiting:
    """Waits for the mirrors that were not in sync at its first look. For the thread of one call."""

    def __init__(
        self, queue: str, on_progress: Callable[[QueueStatus], None] | None = None
    ) -> None:
        self.queue = queue
        self._on_progress = on_progress
        self._awaited: tuple[str, ...] | None = None
        self._wrong_count = 0

    def look(self, queues: Iterable[QueueStatus]) -> bool:
        """Return true if all mirrors are in sync by now.

        Raises:
            QueueNotFound: the queue no longer exists.
            MirrorQError: a mirror has gone, was restarted, or its synchronisation was
                cancelled. The other mirrors go on.
        """
        status = next((each for each in queues if each.name == self.queue), None)
        wrong: MirrorQError | None = None
        if status is None:
            wrong = QueueNotFound(f"queue {self.queue!r} was deleted")
        else:
            in_sync = (*status.synchronised_mirrors, status.master)
            if self._awaited is None:
                self._awaited = tuple(m for m in status.mirrors if m not in in_sync)
            left = tuple(name for name in self._awaited if name not in in_sync)
            if self._on_progress is not None:
                self._on_progress(status)
            if not left:
                return True
            wrong = self._what_is_wrong(status, left)
        if wrong is None:
            self._wrong_count = 0
            return False
        self._wrong_count += 1
        if self._wrong_count >= GRACE_LOOKS:
            raise wrong
        return False

    def _what_is_wrong(self, status: QueueStatus, left: tuple[str, ...]) -> MirrorQError | None:
        gone = [name for name in left if name not in status.mirrors]
        if gone:
            return MirrorQError(
                f"{', '.join(gone)} left queue {self.queue!r} before it was in sync: start it, "
                "and synchronise again; what it has is kept"
            )
        if status.sync_progress is None:
            return MirrorQError(
                f"{', '.join(left)} of queue {self.queue!r} is no longer being synchronised: it "
                "was cancelled, or its node was restarted. What it has is kept: synchronise again"
            )
        return None


REASON_CHARS_MAX = 500
ANSWER_S = 5.0
"""Limit in seconds for an answer from the serving node's own knowledge."""
Seen = TypeVar("Seen")


class Administration(ABC):
    """The administrative calls, sent by `_ask`: a node serves them itself, a client's entry node
    for the client."""

    @abstractmethod
    def _ask(self, call: AnyCall, timeout: float | None) -> ClientAnswer:
        """Have a node serve a call, and return the answer or raise its error.

        Raises:
            NoQuorum: no answer came in time.
        """

    @abstractmethod
    def _list(self, what: str, kind: type[Seen], after: str = "") -> tuple[list[Seen], str]:
        """Return the serving node's view of a page of queues, or of all nodes or policies.

        Second is the name after which the next page begins; "" at the end (see `ClientLook`).
        """

    @property
    @abstractmethod
    def _serving_node(self) -> str:
        """The name of the node that answers."""

    @abstractmethod
    def _declare_dead_letters(self, name: str | None, timeout: float | None) -> None:
        """Make the queue for dead letters, if it is named and does not exist."""

    def _administer(self, command: commands.Administrative, timeout: float | None) -> int:
        return self._ask(ClientAdminister(command), timeout).value

    def _disconnect(self, client: str, reason: str, timeout: float | None) -> None:
        self._ask(ClientDisconnect(client, reason), timeout)

    # --- What a node knows ----------------------------------------------------------------

    def queues(self, *, shards: bool = False) -> list[QueueStatus]:
        """Return the status of every queue of the cluster, by name.

        A node that has just started knows of no queue or policy before `Node.wait_ready` returns; a
        client waits for it.

        Args:
            shards: list each shard after its sharded queue.
        """
        check_flags(shards=shards)
        what = "shards" if shards else "queues"
        found, after = self._list(what, QueueStatus)
        while after:
            rows, after = self._list(what, QueueStatus, after)
            found += rows
        return found

    def nodes(self) -> list[NodeStatus]:
        """Return every node of the cluster as the serving node sees it, by name."""
        return self._list("nodes", NodeStatus)[0]

    def policies(self) -> list[PolicyStatus]:
        """Return every policy of the cluster, by name."""
        return self._list("policies", PolicyStatus)[0]

    def _attendance(self) -> Attendance:
        """Return the clients and consumers of the cluster, as reported by all nodes.

        `unheard` names running nodes that gave no answer within 3 s; their entries are missing.
        """
        answer = self._ask(ClientLook("attendance"), ANSWER_S)
        return self._decoded(answer, "attendance", Attendance)

    def _decoded(self, answer: ClientAnswer, what: str, kind: type[Seen]) -> Seen:
        try:
            return msgspec.json.decode(answer.data or b"{}", type=kind)
        except errors.MALFORMED as error:
            who = f"node {self._serving_node}"
            raise ProtocolError(f"{who} sent {what} that cannot be read: {error}") from None

    # --- Policies and copies --------------------------------------------------------------

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        priority: int = 0,
        apply_to: str = "queues",
        *,
        timeout: float | None = 30,
    ) -> None:
        """Make or replace the policy of a name. It holds at once for all queues.

        Args:
            name: the policy's, 1 to 255 characters.
            apply_to: "queues" or "all": the same, as exchanges have no policies.
            pattern: a regular expression that is looked for anywhere in a queue's name.
            definition: keys as RabbitMQ writes them, such as {"ha-mode": "exactly",
                "ha-params": 2}; docs/policies.md lists them. A missing dead-letter-queue
                is made: durable, with the copies that its own policies require.
            priority: the matching policy with the highest priority is in force; with equal
                priorities the name that sorts first.
            timeout: seconds to wait for a majority. None waits.

        Raises:
            PolicyError: the policy is malformed; nothing has changed.
            NoQuorum: no majority in time. It may still come into force.

        Example:
            ```python
            node.set_policy("orders", "^orders", {"ha-mode": "exactly", "ha-params": 2})
            ```
        """
        policy = parse(name, pattern, definition, priority, apply_to)
        self._declare_dead_letters(policy.definition.dead_letter_queue, timeout)
        self._administer(commands.SetPolicy(policy.name, to_text(policy)), timeout)

    def clear_policy(self, name: str, *, timeout: float | None = 30) -> None:
        """Remove a policy. An unknown name has no effect.

        Args:
            name: the policy's.
            timeout: seconds to wait for a majority. None waits.

        Raises:
            PolicyError: no policy can have such a name.
            NoQuorum: no majority in time. It may still be removed.
        """
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS_MAX:
            raise PolicyError(
                f"a policy's name is a string of 1 to {NAME_CHARS_MAX} characters, not {name!r}"
            )
        self._administer(commands.ClearPolicy(name), timeout)

    def sync_queue(
        self,
        queue: str,
        wait: bool = False,
        *,
        timeout: float | None = 30,
        on_progress: Callable[[QueueStatus], None] | None = None,
    ) -> None:
        """Have the mirrors of a queue that are not in sync fetch their missing messages.

        The queue goes on meanwhile. The current mirrors go on even if the master changes or the
        caller ends. A mirror that is restarted, or joins later, follows `ha-sync-mode` again. The
        call has no effect when all mirrors are in sync.

        Args:
            queue: its name.
            wait: return when all mirrors are in sync.
            timeout: seconds to wait for a majority. None waits.
            on_progress: called from time to time with the queue's status during the wait.

        Raises:
            QueueNotFound: there is no such queue.
            NoQuorum: no majority in time. It may still begin.
            MirrorQError: `wait`, and a mirror left, was restarted or was cancelled.
        """
        check_flags(wait=wait)
        self._administer(commands.Synchronise(_checked_name(queue), True), timeout)
        if not wait:
            return
        waiting = Waiting(queue, on_progress)
        while not waiting.look(self.queues()):
            clock.sleep(LOOK_S)

    def cancel_sync(self, queue: str, *, timeout: float | None = 30) -> bool:
        """Stop the synchronisation of a queue's mirrors; they keep the messages that they have.

        With `ha-sync-mode: automatic` too: the mirrors stay as they are until `sync_queue` or their
        restart.

        Args:
            queue: its name.
            timeout: seconds to wait for a majority. None waits.

        Returns:
            False: no mirror was being synchronised.

        Raises:
            QueueNotFound: there is no such queue.
            NoQuorum: no majority in time. It may still be cancelled.
        """
        return self._administer(commands.Synchronise(_checked_name(queue), False), timeout) > 0

    def acknowledge_losses(self, queue: str, messages: int, *, timeout: float | None = 30) -> None:
        """End the warning of messages lost by unclean promotions, until more messages are lost.

        Args:
            queue: its name; for a sharded queue the name of a shard.
            messages: number of known losses: `status().messages_lost`.
            timeout: seconds to wait for a majority. None waits.

        Raises:
            QueueNotFound: there is no such queue.
            NoQuorum: no majority in time. It may still end.
        """
        check_sequence("messages", messages)
        self._administer(commands.AcknowledgeLosses(_checked_name(queue), messages), timeout)

    # --- Where masters are --------------------------------------------------------------

    def transfer_master(self, queue: str, node: str, *, timeout: float | None = 30) -> None:
        """Make a node that is in sync the queue's master. Nothing is lost, little waits.

        The old master stays as a mirror. Messages that are unacknowledged at the time are delivered
        again, marked as redelivered; an ack on the way is taken if possible.

        Args:
            timeout: seconds to wait for the new master. None waits.
            queue: its name.
            node: the name of the new master.

        Raises:
            PreconditionFailed: the node has no copy, is not in sync or does not run, or the
                policy in force wants no copy there: the message names the cause and the remedy.
            QueueNotFound: no queue has the name.
            NoQuorum: not done in time. It may still be done for a moment.
        """
        _check_name("queue", queue)
        _check_name("node", node)
        self._administer(commands.TransferMaster(queue, node), timeout)

    def rebalance(self, *, timeout: float | None = 60) -> int:
        """Level masters over the nodes, by transfers between members in sync: nothing is copied.

        Args:
            timeout: seconds to wait for the end. None waits.

        Returns:
            Number of masters that were moved.

        Raises:
            PreconditionFailed: another rebalance is running.
            NoQuorum: not done in time. Moved masters stay moved.
        """
        return self._administer(commands.Rebalance(), timeout)

    # --- Clients -------------------------------------------------------------------------

    def clients(self) -> list[ClientStatus]:
        """Return every client of the cluster, by node and name. The clients of a node without an
        answer within 3 s are missing: `attendance()` names such nodes."""
        return list(self._attendance().clients)

    def consumers(self, queue: str | None = None) -> list[ConsumerStatus]:
        """Return every consumer of the cluster, or of one queue, by queue and tag. A queue's
        consumers are missing if its master does not answer within 3 s: `attendance()` names such
        nodes."""
        found = self._attendance()
        return list(found.consumers if queue is None else found.of_queue(queue))

    def disconnect(self, client: str, reason: str = "", *, timeout: float | None = 30) -> None:
        """Disconnect a client, or one consumer, on any node. Needs the role admin.

        The client's messages return to their places in the queues and come again marked as
        redelivered; its exclusive queues end. The client is closed: its consumers are cancelled
        (`on_cancel`), its calls raise `ShutDown` with the reason, its puts without an outcome end
        with `ConfirmUnknown`. It does not come back by itself; the program may connect anew.

        A consumer's tag, even on a node's own process, ends only the consumer. Its messages return,
        it is cancelled (`on_cancel`, `consumer.refused`), and the rest of its program goes on.

        Args:
            client: its name, as `clients()` has it; or a consumer's tag, as `consumers()` has it.
            reason: for the client, its users and the logs.
            timeout: seconds to wait for an answer. None waits.

        Raises:
            PreconditionFailed: there is no such client or consumer.
            NoQuorum: no answer in time; or it was not found and some nodes did not answer.
        """
        if not isinstance(client, str) or not client:
            raise ConfigError(f"a client's name is a string that is not empty, not {client!r}")
        check_text("a client's name", client)
        check_text("a reason", reason)
        if len(reason) > REASON_CHARS_MAX:
            raise ConfigError(f"a reason is a string of at most {REASON_CHARS_MAX} characters")
        self._disconnect(client, " ".join(reason.split()), timeout)

    # --- Nodes ---------------------------------------------------------------------------

    def forget_node(self, name: str, force: bool = False, *, timeout: float | None = 30) -> None:
        """Remove a node that does not run from the cluster, with its vote and its copies.

        It cannot come back with its old store; with an empty store it may join anew.

        Args:
            name: the node's.
            force: even if it has the last copy in sync of a queue, which is then deleted with
                its messages. If the policy has `ha-promote-on-failure: always` and another
                copy runs, the other copy becomes the master first and the queue is kept.
            timeout: seconds to wait for a majority, and for a silent master's lease to end.

        Raises:
            PreconditionFailed: it is alive, unknown, or has the last copy in sync of a queue.
            NoQuorum: no majority in time. It may still be removed.
        """
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a node's name is a string that is not empty, not {name!r}")
        check_flags(force=force)
        self._administer(commands.RemoveNode(name, 0, force), timeout)


def _checked_name(queue: str) -> str:
    if not isinstance(queue, str):
        raise QueueNotFound(f"a queue is named by a string, not {queue!r}")
    try:
        queue.encode()
    except UnicodeEncodeError:
        raise QueueNotFound(f"no queue is named {queue!r}") from None
    return queue


def _check_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise PreconditionFailed(f"the name of a {what} is a string, not {name!r}")
