"""mirrorq.testing: whole clusters on virtual time, for mirrorq's tests and for yours.

    cluster     `SimulatedCluster`: nodes, disks, network, crashes
    workload    producers and consumers, and what they saw
    checkers    what must hold of a run
    swarm       one seed, one run with random faults
    chaos       real processes and real faults; by itself, see there

Nothing here but `chaos` sleeps, opens a socket or writes a file.
"""

from mirrorq.testing.cluster import SimulatedCluster, states

__all__ = ["SimulatedCluster", "states"]
