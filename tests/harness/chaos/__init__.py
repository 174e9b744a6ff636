"""Real processes on one machine, real faults, and checks of what clients saw.

    python -m harness.chaos --seeds 20 --nodes 3,5

    course      one seed: nodes and workers are started, faults come and go, then the check
    faults      what breaks, drawn from the seed
    processes   node and worker processes, seen from the parent
    process     such a process, seen from inside
    roles       producers and consumers that write down what they saw
    history     these records
    checks      what must hold of them, in Jepsen's words
    proxy       TCP between the nodes: cut, held, one way, delayed
    namespaces  the same with network namespaces, where the machine allows it
    disks       a disk per node that can be full

Other than `harness.swarm` on virtual time nothing here can be repeated exactly: a seed
repeats the faults and their times, not what the kernel does in between.
"""
