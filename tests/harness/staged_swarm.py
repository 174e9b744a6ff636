"""A swarm's run in which a queue is written to by drivers and tasks, beside its other queues.

python -m harness.staged_swarm --seeds 0-99
python -m harness.staged_swarm --seeds 0-99 --pair      each version in two queues
"""

from __future__ import annotations

import argparse
from collections import Counter
from random import Random

from attrs import evolve

from harness.chain import Drain
from harness.staged_load import StagedLoad
from harness.staged_pair import StagedPair
from harness.swarm import Swarm

__all__ = ["StagedSwarm"]

SEALED_MS = 4000


class StagedSwarm(Swarm):
    """Policies change copies and masters here; none limits messages."""

    def __init__(self, seed: int, *, is_pair: bool = False) -> None:
        super().__init__(seed, chain=False, fan=False, delays_ms=(0,))
        self._has_transient = self._has_dead = False
        if self.policies is not None:
            self.policies._with_limits = False
            self.policies._dead = ""
        self.staged: StagedLoad | None = None
        self._is_pair = is_pair
        # A queue whose sealed runs nobody decides asks while the run goes on.
        self.cluster.config = evolve(self.cluster.config, sealed_timeout_ms=SEALED_MS)

    def _start_extras(self, pace: int) -> None:
        super()._start_extras(pace)
        queue_id = self.cluster.declare(self.random.choice(self.data_nodes), "staged")
        kind = StagedPair if self._is_pair else StagedLoad
        self.staged = kind(
            self.cluster,
            Random(self.seed),
            "staged",
            queue_id,
            self.faults.counts,
            pace=pace,
        )
        if isinstance(self.staged, StagedPair):
            self.staged.second = self._extra(Drain, "second", pace)
        self.loads.append(self.staged)

    def _check(self) -> list[str]:
        if self.staged is not None:
            self.staged.judge()
        return super()._check()


def main() -> None:
    """Run seeds; exit status 1 when one is wrong."""
    parser = argparse.ArgumentParser(description="Staged writes under random faults, checked.")
    parser.add_argument("--seeds", default="0-9", help="first-last")
    parser.add_argument("--pair", action="store_true", help="each version in two queues")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    wrong = 0
    counts: Counter[str] = Counter()
    for seed in range(int(first), int(last or first) + 1):
        report = StagedSwarm(seed, is_pair=options.pair).run()
        counts.update(report.faults)
        for text in report.wrong[:5]:
            print(f"seed {seed}: {text}")
        wrong += bool(report.wrong)
    staged = ("version", "run", "driver", "task", "commit")
    told = [f"{kind} {n}" for kind, n in sorted(counts.items()) if kind.startswith(staged)]
    print(f"{wrong} seeds are wrong; {', '.join(told)}")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
