"""`mirrorq store backup` and `mirrorq store restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, acted, as_json
from mirrorq.cli.progress import progress_bar
from mirrorq.cli.stores import said_of, verified

if TYPE_CHECKING:
    from mirrorq.cluster.force_boot import RecoveredState


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path), metavar="BACKUP")
@click.option("--no-verify", is_flag=True, help="Do not check the copy.")
@as_json
def backup(path: Path, target: Path, no_verify: bool, is_json: bool) -> None:
    """Copy the store at PATH, of a node that may go on running, to the new directory BACKUP.

    The copy is the store as of the moment at which this begins, without free pages, checked
    at the end (`mirrorq store verify`). To be run on the node's machine.
    """
    from mirrorq.store.copies import back_up, copied_to

    with copied_to(target) as part:
        with progress_bar(f"copying {path}") as on_progress:
            back_up(path, part, on_progress)
        said = "not checked" if no_verify else _good(part)
    acted(is_json, f"backup: {target}: {said}", backup=target, is_checked=not no_verify)


def _good(part: Path) -> str:
    report = verified(part)
    if not report.is_good:
        raise Failed(
            f"the copy is damaged, {len(report.problems)} problems, and was not kept: "
            f"{report.problems[0]}"
        )
    return said_of(report)


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="BACKUP")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--alone",
    is_flag=True,
    help="The cluster is lost wholly: go on from this backup as its only node (see force-boot).",
)
@as_json
def restore(source: Path, path: Path, alone: bool, is_json: bool) -> None:
    """Make the store of a node from BACKUP at PATH, which must not be there yet.

    Of a node that was alone: with all that the backup holds. Of a node of a larger cluster:
    as a store that joins that cluster anew under its name and takes its queues from the nodes
    that run, for these know more; with --alone: as the only node, with all that the backup holds.
    """
    from mirrorq.cluster.force_boot import recovered_state
    from mirrorq.store.copies import copied_to
    from mirrorq.store.offline import OfflineStore
    from mirrorq.store.renewal import taken_of

    with copied_to(path) as part:
        with OfflineStore(source) as opened:
            inventory = taken_of(opened)
        recovered = recovered_state(inventory.node, inventory.store, inventory.raft)
        if recovered is None:
            raise Failed(f"{source} belongs to no cluster yet: start the node without it")
        if alone or not recovered.others:
            text = _put_back(source, part, inventory.node)
        else:
            text = _make_joiner(source, part, recovered)
    acted(is_json, f"restored: {path}: {text}", restored=path, next=text)


def _put_back(source: Path, part: Path, node: str) -> str:
    from mirrorq.cli.booting import go_on_alone
    from mirrorq.store.copies import put_back

    with progress_bar(f"copying {source}") as on_progress:
        put_back(source, part, on_progress)
    said = _good(part)
    go_on_alone(part)
    return f"the only node of its cluster now, nodes beside {node} join with empty stores; {said}"


def _make_joiner(source: Path, part: Path, recovered: RecoveredState) -> str:
    from mirrorq.cluster.bootstrap import joining
    from mirrorq.config import Config
    from mirrorq.protocol.effects import RaftState, RaftWrite
    from mirrorq.store.node_store import Store
    from mirrorq.store.renewal import renew

    report = verified(source)
    if not report.is_good:
        raise Failed(f"backup {source} is damaged: {report.problems[0]}")
    node = recovered.node.name
    endpoints = tuple(
        one.endpoint for one in recovered.catalog.nodes() if one.name != node and one.endpoint
    )
    if not endpoints:
        raise Failed(
            f"backup {source} does not know where the other nodes are: start node {node} with an "
            "empty directory and --join"
        )
    Store(part, node=node, config=Config()).close()
    # It founds nothing: were all nodes restored so, they would begin anew, without a message.
    renew(part, lambda _, __: RaftWrite(RaftState(founding=joining(endpoints))))
    return (
        f"node {node} joins {', '.join(recovered.others)} again and takes its queues from them. If "
        "they are lost, restore with --alone"
    )
