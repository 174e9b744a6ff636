"""mirrorq.testing: your code against a whole cluster, on virtual time and with faults.

    cluster     `SimulatedCluster`: nodes, tasks of yours, crashes and partitions
    schedule    threads of which one runs at a time, and time that passes when all wait
    network     connections that delay, lose and break
    store       what a node keeps, on a `disk` that outlives it

Nothing here opens a socket, writes a file or waits in real time.
"""

from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.schedule import SimulationError, Stuck, Task

__all__ = ["SimulatedCluster", "SimulationError", "Stuck", "Task"]
