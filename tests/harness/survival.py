"""`mirrorq node force-boot` on a disk of the simulator."""

from __future__ import annotations

from harness.cluster import SimulatedCluster
from harness.rail import RailDisk
from mirrorq.cluster.force_boot import Loss, recovered_state
from mirrorq.protocol.identities import first_incarnation

__all__ = ["force_boot"]


def force_boot(cluster: SimulatedCluster, name: str) -> tuple[Loss, ...]:
    """Make this node, which does not run, the only one of its cluster; what becomes of each queue.

    It does with the disk what `store.renewal` does with a store: another identity, in place of the
    catalog what the survivor makes of it, and the queues as they are.
    """
    node = cluster.nodes[name]
    assert node.engine is None
    old = node.disk
    old.end_log()
    recovered = recovered_state(name, old.store, old.raft_image())
    assert recovered is not None, f"{name} is of no cluster yet"
    losses = recovered.losses(tuple(old.queues))
    store, identity = cluster.random.getrandbits(62), cluster.random.getrandbits(62)
    disk = RailDisk(store, queues=old.queues)
    disk.incarnation = first_incarnation(store)
    disk.commit((), recovered.inherited(tuple(old.queues), store, identity))
    node.disk = disk
    cluster.note(f"force-boot {name}")
    return losses
