"""mirrorq.testing: whole clusters on virtual time, for mirrorq's tests and for yours.

    cluster     `SimulatedCluster`: nodes, disks, network, crashes
    workload    producers and consumers, and what they saw
    load        the handles on one queue of a run, its purges and its lives
    faults      what breaks, where, and how often it did
    checkers    what must hold of a run
    swarm       one seed, one run with random faults
    results     many seeds in a file
    chaos       real processes and real faults; by itself, see there

Nothing here but `chaos` sleeps or opens a socket; nothing but it and `results` writes a file.
"""

from mirrorq.testing.cluster import SimulatedCluster, states

__all__ = ["SimulatedCluster", "states"]
