"""What shows each checker of the swarm: a mutation under which it objects.

`catches` asks which checker notices each mutation, and one is enough there. Here it is asked the
other way round, so that no checker of tests/RELIABILITY.md is one that nothing has ever set
off.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from harness.mutations.registry import mutation

from . import moments, runs
from .catches import SEEDS


@frozen
class Shown:
    """A run, the mutation, and words of the checker's complaint."""

    rule_left_out: str
    words: str
    run: Callable[[int], str] | None = None
    seed: int = 0
    """Of that run; without one it is what `SEEDS` has for the mutation."""

    def play(self) -> str:
        """The complaint under the mutation."""
        run = self.run or SEEDS[self.rule_left_out].run
        seed = self.seed if self.run is not None else SEEDS[self.rule_left_out].seed
        with mutation(self.rule_left_out):
            return run(seed)


SHOWN: dict[str, Shown] = {
    "lost": Shown("unclean promotion although when-synced", "lost", moments.stray),
    "unexpected": Shown("refused message stored all the same", "unexpected"),
    "duplicated": Shown("dedupe against the applied table only", "duplicated", moments.cut_off),
    "undercounted": Shown("promotion not counted", "undercounted", runs.brief, 5),
    "undone acks": Shown("claim got beside others", "acked at"),
    "misrefused": Shown("ack refused when it comes again", "misrefused"),
    "unresolved": Shown("known number not answered", "open"),
    "two orders": Shown("half the voters keep a leader", "two orders", moments.halves),
    "two masters": Shown("half the voters keep a leader", "two masters"),
    "confirmed too early": Shown("confirm before the own disk", "confirmed too early", runs.brief),
    "promise broken": Shown("a failed node's close ends its logs", "promise broken", moments.ended),
    "no progress": Shown("exclusive queue outlives its handle", "no progress"),
    "unequal": Shown("state merged, not replaced", "differ at lsn", moments.rejoined, 1),
    "undrained": Shown("frames of ended messages kept", "undrained"),
    "undeleted": Shown("deleted queue stays on the disk", "undeleted"),
    "overfull": Shown("limit judged on the applied state only", "overfull", moments.crowded),
    "revived": Shown("purged message stays ready", "revived"),
    "ended": Shown("exclusive queue ends with any handle of its node", "ended"),
    "unsent": Shown("outbox forgets one more than has arrived", "unsent"),
    "uncounted": Shown("unclean promotion loses in silence", "uncounted"),
    "repeated": Shown("unique keys forgotten by who reads a state", "repeated: key"),
    "unpaused": Shown("pause forgotten by the next master", "unpaused"),
    "unpaired": Shown("step's message forgotten", "unpaired"),
    "uneven": Shown("first queue's outcome told for all", "uneven"),
    "early": Shown("delay of a put forgotten", "early"),
    "time": Shown("durations by the wall clock", "time: "),
    "busy": Shown("open request steps on without a leader", "busy"),
    "asleep": Shown("timer set and nobody told", "asleep"),
    "held twice": Shown("message handed on while it is held", "held twice"),
    "claimed twice": Shown("others served beside a claim", "claimed twice"),
    "served beside the only one": Shown(
        "several consumers active at once", "served beside the only one"
    ),
    "held by the dead": Shown("place of a dead handle kept", "held by the dead"),
    "taken by others": Shown("everybody takes from a connection's queue", "taken by others"),
    "two owners": Shown("connection's queue declared by another one", "two owners"),
    "refused by its own past": Shown(
        "past life of a node keeps its queues", "refused by its own past"
    ),
    "torn": Shown("decided without a seal", "torn"),
}
"""By the names that tests/RELIABILITY.md gives them."""
