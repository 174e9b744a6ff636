"""mirrorq's own proof: what searches for faults, beside the tests that call it.

    cluster      `SimulatedCluster`: engines on virtual time, with a network and disks
    onlooker     what is watched at each of their steps: orders, masters, confirms
    workload     producers and consumers on it, and what they saw
    load         the handles on one queue of a run, its purges and its lives
    faults       what breaks, where, and how often it did
    checkers     what must hold of a run
    flakes       tests again and again on a bad machine: `python -m harness.flakes`
    swarm        one seed, one run with random faults: `python -m harness`
    results      many seeds in a file
    explore      every interleaving of small rings over the real modules
    mutations    deliberate bugs, each one rule left out: does a checker notice?
    chaos        real processes and real faults: `python -m harness.chaos`

Run as modules from this folder's parent (`cd tests`), or through the Makefile. Users have
`mirrorq.testing`: whole nodes and their own code, where this has engines and looks into them.
"""

from pathlib import Path

__all__ = ["TESTS"]

TESTS = Path(__file__).parents[1]
"""From where a process finds the harness: its PYTHONPATH."""
