"""mirrorq.testing: your code against a whole cluster, on virtual time and with faults.

    cluster     `SimulatedCluster`: nodes, tasks of yours, crashes and partitions
    seeds       `simulate`: one test with many seeds
    schedule    threads of which one runs at a time, and time that passes when all wait
    patching    Python's own time, threads and asyncio for tasks, with `loop`
    network     connections that delay, lose and break
    store       what a node keeps, on a `disk` that outlives it

Nothing here waits in real time, writes a file, or sends anything to anywhere. Begin with
`cluster`, and with `Scheduler.wait` in `schedule`.
"""

from mirrorq.testing.cluster import SimulatedCluster
from mirrorq.testing.schedule import SimulationError, Stuck, Task
from mirrorq.testing.seeds import simulate

__all__ = ["SimulatedCluster", "SimulationError", "Stuck", "Task", "simulate"]
