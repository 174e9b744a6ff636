"""mirrorq.testing: your code against a whole cluster, on virtual time and with faults.

    cluster     `SimulatedCluster`: nodes, tasks of yours, crashes and partitions
    seeds       `simulate`: one test with many seeds
    schedule    threads that run one at a time, and time that passes when all wait
    patching    Python's own time, threads and asyncio for tasks, with `loop`
    network     connections that delay, lose and break
    store       a node's stored data, on a `disk` that outlives the node

Nothing here waits in real time, writes a file, or uses a real network. Begin with `cluster`, and
with `Scheduler.wait` in `schedule`.
"""

from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.schedule import SimulationError, Stuck, Task
from mirrorq.testing.seeds import simulate

__all__ = ["SimulatedCluster", "SimulationError", "Stuck", "Task", "simulate"]
