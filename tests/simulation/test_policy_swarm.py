"""Random faults, and policies and masters that change all the time beside them."""

from __future__ import annotations

import pytest

from mirrorq.testing.policy_faults import PolicyFaults
from mirrorq.testing.swarm import Swarm


class PolicySwarm(Swarm):
    """A swarm in which policies change too."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.policies = PolicyFaults(self.cluster, self.random, "q0")
        self._is_over = False

    def _start(self) -> None:
        super()._start()
        self._change()

    def _change(self) -> None:
        if not self._is_over:
            self.policies.change()
            self.cluster.after(self.random.randint(50, 1000), self._change)

    def _heal_and_drain(self) -> tuple[list[str], int]:
        self._is_over = True
        self.cluster.heal_all()
        self.cluster.start()
        self.cluster.run(5000)
        self.policies.end()
        return super()._heal_and_drain()


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_while_copies_and_masters_move(seed: int) -> None:
    """Every checker of the swarm, with several policies set and masters moved in each run."""
    swarm = PolicySwarm(seed)
    report = swarm.run()
    assert report.wrong == []
    assert swarm.policies.changes >= 10
