"""Calls on a cluster, awaited: each call of a node or a client in a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from mirrorq.aio.threads import in_thread

if TYPE_CHECKING:
    from mirrorq.client.client import Client
    from mirrorq.monitoring.presence import ClientStatus, ConsumerStatus
    from mirrorq.monitoring.status import NodeStatus, PolicyStatus, QueueStatus
    from mirrorq.node.node import Node


class Administration:
    """Arguments, results, errors as in `mirrorq.Node`. A cancelled call may take effect."""

    host: Node | Client

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Wait for a cluster that has a majority.

        Arguments, result and errors as in `mirrorq.Client.wait_ready`.
        """
        await in_thread(partial(self.host.wait_ready, timeout))

    async def queues(self, *, shards: bool = False) -> list[QueueStatus]:
        """The status of every queue of the cluster, by name.

        Arguments, result and errors as in `mirrorq.Client.queues`.
        """
        return await in_thread(partial(self.host.queues, shards=shards))

    async def nodes(self) -> list[NodeStatus]:
        """Every node of the cluster, by name."""
        return await in_thread(self.host.nodes)

    async def policies(self) -> list[PolicyStatus]:
        """Every policy of the cluster, by name."""
        return await in_thread(self.host.policies)

    async def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        priority: int = 0,
        apply_to: str = "queues",
        *,
        timeout: float | None = 30,
    ) -> None:
        """Set a policy for the queues whose names match the pattern.

        Arguments, result and errors as in `mirrorq.Client.set_policy`.
        """
        values = (name, pattern, definition, priority, apply_to)
        await in_thread(partial(self.host.set_policy, *values, timeout=timeout))

    async def clear_policy(self, name: str, *, timeout: float | None = 30) -> None:
        """Take a policy away.

        Arguments, result and errors as in `mirrorq.Client.clear_policy`.
        """
        await in_thread(partial(self.host.clear_policy, name, timeout=timeout))

    async def sync_queue(
        self,
        queue: str,
        wait: bool = False,
        *,
        timeout: float | None = 30,
        on_progress: Callable[[QueueStatus], None] | None = None,
    ) -> None:
        """Synchronise a queue's mirrors; `on_progress` is called in the thread that waits.

        Arguments, result and errors as in `mirrorq.Client.sync_queue`.
        """
        call = partial(self.host.sync_queue, queue, wait, timeout=timeout, on_progress=on_progress)
        await in_thread(call)

    async def cancel_sync(self, queue: str, *, timeout: float | None = 30) -> bool:
        """Stop synchronising a queue's mirrors; False: none was being synchronised.

        Arguments, result and errors as in `mirrorq.Client.cancel_sync`.
        """
        return await in_thread(partial(self.host.cancel_sync, queue, timeout=timeout))

    async def acknowledge_losses(
        self, queue: str, messages: int, *, timeout: float | None = 30
    ) -> None:
        """End the warning of messages that unclean promotions have lost.

        Arguments, result and errors as in `mirrorq.Client.acknowledge_losses`.
        """
        await in_thread(partial(self.host.acknowledge_losses, queue, messages, timeout=timeout))

    async def transfer_master(self, queue: str, node: str, *, timeout: float | None = 30) -> None:
        """Make a mirror in sync the master of a queue.

        Arguments, result and errors as in `mirrorq.Client.transfer_master`.
        """
        await in_thread(partial(self.host.transfer_master, queue, node, timeout=timeout))

    async def rebalance(self, *, timeout: float | None = 60) -> int:
        """Spread masters over the nodes; returns how many were moved.

        Arguments, result and errors as in `mirrorq.Client.rebalance`.
        """
        return await in_thread(partial(self.host.rebalance, timeout=timeout))

    async def clients(self) -> list[ClientStatus]:
        """Every client of the cluster."""
        return await in_thread(self.host.clients)

    async def consumers(self, queue: str | None = None) -> list[ConsumerStatus]:
        """Every consumer of the cluster, or of one queue."""
        return await in_thread(partial(self.host.consumers, queue))

    async def disconnect(
        self, client: str, reason: str = "", *, timeout: float | None = 30
    ) -> None:
        """End a client, or one consumer.

        Arguments, result and errors as in `mirrorq.Client.disconnect`.
        """
        await in_thread(partial(self.host.disconnect, client, reason, timeout=timeout))

    async def forget_node(
        self, name: str, force: bool = False, *, timeout: float | None = 30
    ) -> None:
        """Take a node that is no more out of the cluster.

        Arguments, result and errors as in `mirrorq.Client.forget_node`.
        """
        await in_thread(partial(self.host.forget_node, name, force, timeout=timeout))
