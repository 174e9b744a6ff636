"""`mirrorq node force-boot`, and `node forget` without a majority."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, acted, as_json, echo
from mirrorq.cli.stores import verified

if TYPE_CHECKING:
    from mirrorq.cluster.force_boot import RecoveredState
    from mirrorq.protocol.effects import RaftWrite
    from mirrorq.store.renewal import Inventory


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
def force_boot(path: Path, yes: bool, is_json: bool) -> None:
    """Make the node whose store is at PATH, and which does not run, the only one of its cluster.

    Only when so many nodes are lost for good that no majority can come back. What only they
    had is lost; they come back with empty stores. Says what that means, and asks.
    """
    boot(path, None, is_agreed=yes, is_json=is_json)


def boot(path: Path, forgotten: str | None, *, is_agreed: bool, is_json: bool) -> None:
    """Ask the user, and boot the node.

    Args:
        forgotten: the only other node of the cluster; None: any other nodes.
    """
    from mirrorq.cluster.force_boot import recovered_state
    from mirrorq.store.offline import OfflineStore
    from mirrorq.store.renewal import taken_of

    report = verified(path)
    if not report.is_good:
        raise Failed(
            f"store {path} is damaged ({report.problems[0]}): see mirrorq store verify, and take "
            "another node or a backup"
        )
    with OfflineStore(path) as store:
        inventory = taken_of(store)
    recovered = recovered_state(inventory.node, inventory.store, inventory.raft)
    if recovered is None:
        raise Failed(f"the store at {path} belongs to no cluster yet: start its node")
    _check(path, recovered, forgotten)
    losses = _will_be(recovered, inventory.queues, report.messages_of, report.lacking_of)
    for text in losses:
        echo(text, err=is_json)
    if not is_agreed and not click.confirm("Go on?", err=True):
        raise Failed("nothing was changed")
    go_on_alone(path)
    name = recovered.node.name
    text = f"done: start node {name}, and the others with empty directories"
    acted(is_json, text, node=name, losses=losses)


def _check(path: Path, recovered: RecoveredState, forgotten: str | None) -> None:
    name = recovered.node.name
    if not recovered.others:
        raise Failed(f"node {name} at {path} is the only one of its cluster already: start it")
    if recovered.node.witness:
        raise Failed(f"node {name} at {path} is a witness and holds no queue: take another node")
    if forgotten is not None and recovered.others != (forgotten,):
        raise Failed(
            f"the cluster of node {name} at {path} has the nodes {', '.join(recovered.others)} "
            f"beside it, and --path is for one of two. While {_majority(recovered)} of the "
            f"{_size(recovered)} run: mirrorq node forget {forgotten} --connect with their "
            "endpoints. When so many are lost for good that fewer are left: "
            f"mirrorq node force-boot {path}, which forgets all others"
        )


def _size(recovered: RecoveredState) -> int:
    return 1 + len(recovered.others)


def _majority(recovered: RecoveredState) -> int:
    return _size(recovered) // 2 + 1


def _will_be(
    recovered: RecoveredState,
    copies: Sequence[int],
    messages: dict[int, int],
    lacking: dict[int, int],
) -> list[str]:
    """Return a description of the result, line by line."""
    others = ", ".join(recovered.others)
    lines = [f"node {recovered.node.name} becomes the only one; forgotten for good: {others}"]
    for loss in recovered.losses(copies):
        record = recovered.catalog.queue_named(loss.queue)
        assert record is not None
        if loss.is_exclusive:
            lines.append(f"queue {loss.queue!r}: deleted, it was exclusive and its owner is gone")
        elif not loss.has_copy:
            lines.append(f"queue {loss.queue!r}: LOST, there is no copy of it here")
        else:
            missing = lacking.get(record.id, 0)
            kept = messages.get(record.id, 0) - missing
            sync = "was in sync" if loss.was_in_sync else "was NOT in sync: newer messages are lost"
            gone = f", {missing} LOST that it had not fetched yet" if missing else ""
            lines.append(f"queue {loss.queue!r}: {kept} messages kept{gone}; this copy {sync}")
    lines.append(
        "lost too: all that was confirmed, acked or declared without this node; messages that are "
        "kept may be delivered again"
    )
    return lines


def go_on_alone(path: Path) -> None:
    """Write the new state."""
    from mirrorq.cluster.force_boot import recovered_state
    from mirrorq.store.renewal import renew

    def renewal(inventory: Inventory, identity: int) -> RaftWrite:
        recovered = recovered_state(inventory.node, inventory.store, inventory.raft)
        if recovered is None:
            raise Failed(f"the store at {path} belongs to no cluster yet: start its node")
        return recovered.inherited(inventory.queues, identity, secrets.randbits(63))

    renew(path, renewal)
