"""One seed, one run: queues under load and random faults, then heal, drain, check.

python -m harness --seeds 100
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from random import Random
from typing import TypeVar
from unittest.mock import patch

from attrs import define, evolve, field

from harness import checkers
from harness.chain import Chain, Drain, unpaired
from harness.clock_faults import ClockFaults
from harness.cluster import SimulatedCluster
from harness.crowd import Crowd
from harness.damage import ByteFaults
from harness.fan import Fan, uneven
from harness.faults import Faults
from harness.fleeting import Fleeting
from harness.holders import Holders
from harness.load import Life, Load
from harness.membership import MembershipFaults
from harness.owned import Owned
from harness.policy_faults import PolicyFaults
from harness.tiny_pages import tiny_pages
from harness.visits import Visits
from harness.workload import Attempt
from mirrorq.engine import hosting

L = TypeVar("L", bound=Load)

NODE_COUNTS = (1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 6, 7)
QUEUE_COUNTS = (1, 1, 1, 2, 3, 4)
PRIORITIES = ((0,), (0,), (0, 0, 3, 31))
FAULT_MS = 15_000
"""Length of the safety phase of a long run."""
SHORT_SHARE = 0.93
SHORT_MS = (1000, 2000, 4000)
"""The same of a short run: it costs a tenth, and has a mix of faults of its own as any other."""
SHORT_PACES = (1, 3, 8)
"""How many times slower than it could be it is filled, at least: ops are what costs."""
BULK_SHARE = 0.25
"""Of the short runs: those with producers that put hundreds of messages at once."""
CLOCK_GAIN_MAX = 40
"""Clocks run up to so many thousandths apart: within the 4.7 % that leases allow for."""
LATE_MS = 5000
"""What was scheduled by the last faults has been done after this."""
DRAIN_MS = 60_000
"""After heal there must be fewer messages within this, again and again until none is left."""
POLICY_SHARE = 0.5
LIMIT_SHARE = 0.5
"""Of the runs with policies: those in which these limit messages."""
MEMBER_SHARE = 0.35
TRANSIENT_SHARE = 0.25
DEAD_SHARE = 0.6
"""Of the runs with limits: those with a queue for dead letters."""
"""How many runs have these."""
DRAINED_SHARE = 0.5
"""Of the runs with dead letters: those in which somebody consumes them."""
CHAIN_SHARE = 0.2
FAN_SHARE = 0.2
DELAY_SHARE = 0.15
HOLD_SHARE = 0.15
FLEETING_SHARE = 0.15
OWNED_SHARE = 0.15
CROWD_SHARE = 0.08
"""Of all runs: those with hundreds of small queues, and portions of one."""
CROWD_RUN_MAX = 4
"""Copies stepped in one step there."""
RETURN_MS = 10_000
"""An owner is waited for so long where there are any, in place of half a minute."""
CLIENT_SHARE = 0.25
CLOCK_SHARE = 0.35
END_SHARE = 0.35
KEYS_SHARE = 0.25
ACTS_SHARE = 0.15
"""Somebody deletes messages, pauses queues and resumes them."""
"""Producers put unique keys."""
"""Of all runs: those in which processes end in all ways, and are not only killed."""
STAR_SHARE = 0.4
RAIL_SHARE = 0.6
"""Of the runs with the star: those in which it is taken by a rail."""
MIXED_SHARE = 0.2
"""Of the runs with the star: those in which one node does not take part in it."""
PAGES_SHARE = 0.5
FLIP_SHARE = 0.4
"""Of the runs without policies and changes of members: those in which bytes change on disks."""
UNCLEAN_SHARE = 0.2
"""Of the runs with policies and without dead letters: those that may promote who is not in sync."""
DELAYS_MS = (0, 0, 60, 1500)
LOOK_MS = 7
"""Between two looks at limits, or at what is left to drain."""
PRESS_MS = 2000
"""At the end it is asked so often that nodes that are gone be forgotten."""
DEAD = "dead"
QUIET_MS = 3000
"""After the drain checkpoints are written and marks have gone round within this. Where pages are
tiny, a checkpoint of many of them may be on its way for longer: see `quiet_down`."""


@define
class Report:
    """The result of one seed."""

    seed: int
    wrong: list[str]
    tally: checkers.Tally
    faults: dict[str, int]
    """By kind and target."""
    nodes: int
    queues: int
    simulated_ms: int
    healed_ms: int
    """From heal until all was drained and in sync."""
    rails: dict[str, int] = field(factory=dict)
    """What rails have done."""
    trace: list[str] = field(factory=list)


class Swarm:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        priorities: tuple[int, ...] | None = None,
        delays_ms: tuple[int, ...] | None = None,
        policies: bool | None = None,
        members: bool | None = None,
        chain: bool | None = None,
        fan: bool | None = None,
        dead_letters: bool | None = None,
        unclean: bool | None = None,
        holders: bool | None = None,
        fleeting: bool | None = None,
        owned: bool | None = None,
        crowd: bool | None = None,
        is_short: bool | None = None,
        bulk: bool | None = None,
        clients: bool | None = None,
        clocks: bool | None = None,
        flips: bool | None = None,
        pages: bool | None = None,
        star: bool | None = None,
        rail: bool | None = None,
        ends: bool | None = None,
        keys: bool | None = None,
        acts: bool | None = None,
    ) -> None:
        """Draw a run; what may be in it or not is so as chance wants (None). Rails want a star."""
        self.seed = seed
        self._pages = pages
        """States in pages of a few messages each."""
        self.priorities = priorities
        """Of what is published; None: each queue has some."""
        self.random = Random(seed)
        count = self.random.choice(NODE_COUNTS)
        names = tuple("abcdefg"[:count])
        witnesses = names[-1:] if count >= 3 and self.random.random() < 0.15 else ()
        self.cluster = SimulatedCluster(names, seed=seed, witnesses=witnesses)
        self.loads: list[Load] = []
        self.policies: PolicyFaults | None = None
        self.members: MembershipFaults | None = None
        self.extras: list[Load] = []
        """On queues that no policy matches: of a chain, of an exchange, for dead letters."""
        self.fan: Fan | None = None
        self.chain: Chain | None = None
        self.dead_id = 0
        """The queue for dead letters; 0: there is none."""
        self.dead: Load | None = None
        """Who consumes it; None: nobody does."""
        chances = [self.random.random() for _ in range(5)]
        self._has_dead = chances[1] < LIMIT_SHARE * DEAD_SHARE
        if dead_letters is not None:
            self._has_dead = dead_letters
        if dead_letters:
            policies, chances[1] = True, 0.0
        may_lose = self.random.random() < UNCLEAN_SHARE if unclean is None else unclean
        if unclean:
            policies, self._has_dead = True, False
        if chances[0] < POLICY_SHARE if policies is None else policies:
            self.policies = PolicyFaults(
                self.cluster,
                self.random,
                lambda: [load.name for load in self.loads],
                with_limits=chances[1] < LIMIT_SHARE,
                dead=DEAD if self._has_dead else "",
                may_lose=may_lose and not self._has_dead,
            )
        if chances[3] < MEMBER_SHARE if members is None else members:
            self.members = MembershipFaults(self.cluster, self.random)
        self._has_transient = chances[4] < TRANSIENT_SHARE
        more = [self.random.random() for _ in range(4)]
        self._has_chain = more[0] < CHAIN_SHARE if chain is None else chain
        self._has_fan = more[1] < FAN_SHARE if fan is None else fan
        self._dead_is_drained = more[2] < DRAINED_SHARE or bool(dead_letters)
        # By a chance of its own, in runs that are wholly of chance: old seeds stay as they were.
        own = Random(f"{seed} holders")
        is_plain = chain is None and fan is None
        by_chance = is_plain and own.random() < HOLD_SHARE
        self._has_holders = by_chance if holders is None else holders
        self.holders: Holders | None = None
        by_chance = is_plain and own.random() < FLEETING_SHARE
        self._has_fleeting = by_chance if fleeting is None else fleeting
        self.fleeting: Fleeting | None = None
        by_chance = is_plain and Random(f"{seed} keys").random() < KEYS_SHARE
        self._has_keys = by_chance if keys is None else keys
        by_chance = is_plain and Random(f"{seed} acts").random() < ACTS_SHARE
        self._has_acts = by_chance if acts is None else acts
        by_chance = is_plain and Random(f"{seed} owned").random() < OWNED_SHARE
        self._has_owned = by_chance if owned is None else owned
        self.owned: Owned | None = None
        if self._has_owned:
            self.cluster.config = evolve(self.cluster.config, consumer_return_ms=RETURN_MS)
        by_chance = is_plain and Random(f"{seed} crowd").random() < CROWD_SHARE
        self._has_crowd = by_chance if crowd is None else crowd
        self.crowd: Crowd | None = None
        entries = Random(f"{seed} clients")
        by_chance = is_plain and entries.random() < CLIENT_SHARE
        self._clients = entries if (by_chance if clients is None else clients) else None
        extent = Random(f"{seed} extent")
        by_chance = is_plain and extent.random() < SHORT_SHARE
        self.fault_ms, self._pace_min = FAULT_MS, 1
        if by_chance if is_short is None else is_short:
            self.fault_ms, self._pace_min = extent.choice(SHORT_MS), extent.choice(SHORT_PACES)
        is_short = self.fault_ms < FAULT_MS
        by_chance = is_plain and is_short and extent.random() < BULK_SHARE
        self.is_bulk = by_chance if bulk is None else bulk
        is_delayed = more[3] < DELAY_SHARE
        self.delays_ms = delays_ms or (DELAYS_MS if is_delayed else (0,))
        """Of what is published and of what is given back."""
        self.faults = Faults(
            self.cluster,
            self.random,
            self._queue_ids,
            policies=self.policies,
            members=self.members,
        )
        own = Random(f"{seed} star")
        if is_plain and own.random() < STAR_SHARE if star is None else star:
            by_chance = own.random() < RAIL_SHARE
            has_rail = by_chance if rail is None else rail
            self.cluster.config = evolve(self.cluster.config, star=True, rail=has_rail)
            if own.random() < MIXED_SHARE:
                self.cluster.without_star = names[own.randrange(count)]
        else:
            self.cluster.config = evolve(self.cluster.config, star=False, rail=False)
        own = Random(f"{seed} ends")
        by_chance = is_plain and own.random() < END_SHARE
        if by_chance if ends is None else ends:
            self.faults.draw_ends(own)
        by_chance = Random(f"{seed} clocks").random() < CLOCK_SHARE
        self.clocks: ClockFaults | None = None
        """Who sets wall clocks; None: they are right."""
        if by_chance if clocks is None else clocks:
            own = Random(f"{seed} set")
            self.clocks = ClockFaults(self.cluster, own, self.faults.counts)
        self.flips: ByteFaults | None = None
        chance = Random(f"{seed} bytes")
        may_flip = self.policies is None and self.members is None and count > 1
        if may_flip and (is_plain and chance.random() < FLIP_SHARE if flips is None else flips):
            # Frames below a checkpoint are what can change without breaking a whole copy.
            self.cluster.config = evolve(self.cluster.config, checkpoint_ops=8)
            self.flips = ByteFaults(
                self.cluster,
                chance,
                self._queue_ids,
                self.faults.counts,
                self.faults.is_well,
                self.faults.start_node,
            )
        self.limits = checkers.LimitWatch(self.cluster)

    @property
    def data_nodes(self) -> tuple[str, ...]:
        """Those that are to have copies of every queue, without a policy."""
        return tuple(name for name, node in self.faults.present.items() if not node.witness)

    @property
    def _all_loads(self) -> list[Load]:
        return [*self.loads, *self.extras]

    @property
    def _visits(self) -> list[Visits]:
        """Queues that go with somebody."""
        return [one for one in (self.fleeting, self.owned) if one is not None]

    @property
    def _beside(self) -> list[Visits | Crowd]:
        return [*self._visits, *self._crowds]

    @property
    def _crowds(self) -> list[Crowd]:
        return [] if self.crowd is None else [self.crowd]

    def _queue_ids(self) -> list[int]:
        dead = [self.dead_id] if self.dead_id and self.dead is None else []
        return [load.life.queue_id for load in self._all_loads] + dead

    def run(self) -> Report:
        by_chance = Random(f"{self.seed} pages").random() < PAGES_SHARE
        has_pages = by_chance or self._has_crowd if self._pages is None else self._pages
        with tiny_pages() if has_pages else nullcontext():
            if not self._has_crowd:
                return self._run()
            # Each step of a copy is a commit: one at a time, hundreds of queues never come to rest.
            with patch.object(hosting, "RUN_MAX", CROWD_RUN_MAX):
                return self._run()

    def _run(self) -> Report:
        cluster = self.cluster
        self._start()
        cluster.run(self.fault_ms)
        for load in self._all_loads:
            load.quiet_down()
        if self.fan is not None:
            self.fan.quiet_down()
        for one in self._beside:
            one.quiet_down()
        wrong, healed_ms = self._heal_and_drain()
        tally = checkers.Tally()
        for life in self._lives():
            tally.add(checkers.tally(life.journal))
        return Report(
            self.seed,
            wrong,
            tally,
            dict(sorted(self._counts().items())),
            len(cluster.nodes),
            len(self._queue_ids()),
            cluster.now_ms,
            healed_ms,
            dict(sorted((+cluster.rail_counts).items())),
            cluster.trace,
        )

    def _counts(self) -> Counter[str]:
        counts = Counter({kind: count for kind, count in self.faults.counts.items() if count})
        for kind, count in self.policies.counts.items() if self.policies is not None else ():
            counts[f"policies: {kind}"] = count
        unclean = sum(map(len, self.cluster.onlooker.uncleans.values()))
        if unclean:
            counts["unclean promotion"] = unclean
        return counts

    def _start(self) -> None:
        cluster = self.cluster
        for node in cluster.nodes.values():
            node.clock_offset_ms = self.random.randint(0, 1_000_000)
            node.clock_gain = self.random.choice((0, self.random.randint(0, CLOCK_GAIN_MAX)))
        if self.clocks is not None:
            self.clocks.begin()
        cluster.start()
        queues = self.random.choice(QUEUE_COUNTS)
        pace = max(queues * len(cluster.nodes) // 3, self._pace_min)
        for number in range(queues):
            name = f"q{number}"
            durable = not self._has_transient or self.random.random() < 0.5
            declarer = self.random.choice(self.data_nodes)
            queue_id = cluster.declare(declarer, name, durable=durable)
            counts = self.faults.counts
            load = Load(cluster, self.random, name, queue_id, counts, pace=pace, durable=durable)
            load.priorities = self.priorities or self.random.choice(PRIORITIES)
            load.delays_ms = self.delays_ms
            load.transient_share = 0.5 if self._has_transient else 0.0
            load.is_bulk = self.is_bulk
            if self._has_keys:
                load.keys = Random(f"{self.seed} keys of {name}")
            if self._has_acts:
                load.acts = Random(f"{self.seed} acts on {name}")
            load.is_brief = self.fault_ms < FAULT_MS
            self.loads.append(load)
        self._start_extras(pace)
        for load in self._all_loads:
            load.clients = self._clients
        for node in cluster.nodes.values():
            node.commit_ms = self.random.choice((0, 1, 2, 5))
        for load in self._all_loads:
            load.start()
        if self.fan is not None:
            self.fan.start()
        for one in self._beside:
            one.start()
        self.faults.start()
        if self.clocks is not None:
            self.clocks.start()
        if self.flips is not None:
            self.flips.start()
        # What becomes due or comes back later may exceed a limit, as what is returned may.
        if self.policies is not None and not any(self.delays_ms):
            self._look()

    def _start_extras(self, pace: int) -> None:
        """The queues that others fill, or that fill others."""
        cluster = self.cluster
        if self.policies is not None and self._has_dead:
            if self._dead_is_drained:
                self.dead = self._extra(Drain, DEAD, pace)
                self.dead_id = self.dead.life.queue_id
            else:
                self.dead_id = cluster.declare(self.random.choice(self.data_nodes), DEAD)
        if self._has_chain:
            self.chain = chain = self._extra(Chain, "chain", pace)
            if self.random.random() < 0.5:
                chain.target = self._extra(Drain, "results", pace)
        if self._has_fan:
            ends = [self._extra(Drain, name, pace) for name in ("fan1", "fan2")]
            self.fan = Fan(cluster, self.random, ends, self.faults.counts, pace=pace)
            self.fan.declare(self.random.choice(self.data_nodes))
        if self._has_holders:
            self.holders = self._extra(Holders, "held", pace)
        if self._has_fleeting:
            self.fleeting = Fleeting(
                cluster, Random(self.seed), self.faults.counts, pace=min(pace, 3)
            )
        if self._has_owned:
            own = Random(f"{self.seed} owners")
            self.owned = Owned(cluster, own, self.faults.counts, pace=min(pace, 3))
        if self._has_crowd:
            own = Random(f"{self.seed} crowds")
            self.crowd = Crowd(cluster, own, self.faults.counts, list(self.data_nodes))

    def _extra(self, kind: type[L], name: str, pace: int) -> L:
        queue_id = self.cluster.declare(self.random.choice(self.data_nodes), name)
        counts = self.faults.counts
        load = kind(self.cluster, self.random, name, queue_id, counts, pace=pace)
        self.extras.append(load)
        return load

    def _look(self) -> None:
        self.limits.look(self._queue_ids())
        self.cluster.after(LOOK_MS, self._look)

    def _press(self) -> None:
        """Who is gone for good is to be forgotten, however often it was refused."""
        if self.members is not None:
            self.members.press()
            self.cluster.after(PRESS_MS, self._press)

    def _lives(self) -> list[Life]:
        fleeting = [life for visits in self._visits for life in visits.lives]
        crowded = [life for crowd in self._crowds for life in crowd.lives]
        return [*(life for load in self._all_loads for life in load.lives), *fleeting, *crowded]

    # --- The end ------------------------------------------------------------------------

    def _heal_and_drain(self) -> tuple[list[str], int]:
        cluster = self.cluster
        self.faults.stop()
        if self.clocks is not None:
            self.clocks.stop()
        if self.flips is not None:
            self.flips.stop()
        cluster.run(LATE_MS)
        self.faults.end()
        for load in self._all_loads:
            load.drain()
        if self.fan is not None:
            self.fan.drain()
        for one in self._beside:
            one.drain()
        began_ms = cluster.now_ms
        self._press()
        if self.policies is not None:
            self.policies.end()
        done = self._is_drained()
        least, least_ms = self._left(), began_ms
        while not done and cluster.now_ms < least_ms + DRAIN_MS:
            cluster.run(LOOK_MS)
            done = self._is_drained()
            if (left := self._left()) < least:
                least, least_ms = left, cluster.now_ms
        healed_ms = cluster.now_ms - began_ms
        wrong = [] if done else [f"no progress: {self._situation()}"]
        crowded = [life.queue_id for crowd in self._crowds for life in crowd.lives]
        cluster.quiet_down([*self._queue_ids(), *crowded], QUIET_MS, DRAIN_MS)
        return wrong + self._check(), healed_ms

    def _check(self) -> list[str]:
        if self.holders is not None:
            self.holders.judge()
        wrong = [*self.limits.wrong, *(text for load in self._all_loads for text in load.wrong)]
        for visits in self._visits:
            wrong += visits.wrong
        self._note_dead_letters()
        for life in self._lives():
            self._note_endings(life)
            found = checkers.all_of_journal(life.journal)
            if life.journal.unclean_ms:
                found += checkers.uncounted(life.journal, self._counted_lost(life.queue_id))
            if life.is_ending:
                found += checkers.undeleted(self.cluster, life.queue_id)
            else:
                found += checkers.unequal(self.cluster, life.queue_id)
                found += checkers.undrained(self.cluster, life.queue_id)
            wrong += [f"queue {life.queue_id}: {text}" for text in found]
        wrong += self._unwanted_endings()
        if self.dead_id:
            wrong += checkers.unequal(self.cluster, self.dead_id)
            journals = [life.journal for load in self.loads for life in load.lives]
            taken = self.dead.life.journal if self.dead is not None else None
            wrong += checkers.unsent(journals, self.cluster, self.dead_id, taken)
        if self.chain is not None:
            results = self.chain.target.life.journal
            wrong += unpaired(self.chain.life.journal, results)
        if self.fan is not None:
            wrong += uneven(self.fan.publishes)
        gain = max(node.clock_gain for node in self.cluster.nodes.values())
        for life in self._lives():
            wrong += checkers.repeated(life.journal, gain)
        if any(self.delays_ms):
            wrong += [text for life in self._lives() for text in checkers.early(life.journal, gain)]
        return wrong + self.cluster.onlooker.wrong + self.cluster.onlooker.misordered()

    def _note_dead_letters(self) -> None:
        """What was published for its own queue is expected in the one for dead letters too."""
        if self.dead is not None:
            attempts = self.dead.life.journal.attempts
            for load in self.loads:
                for body in (body for life in load.lives for body in life.journal.attempts):
                    attempts[body] = Attempt(body, "sent on")

    def _note_endings(self, life: Life) -> None:
        onlooker = self.cluster.onlooker
        life.journal.ended = onlooker.ended.get(life.queue_id, {})
        life.journal.cold_ms = onlooker.colds.get(life.queue_id, -1)
        life.journal.unclean_ms = onlooker.uncleans.get(life.queue_id, [])
        life.journal.reported_ms = onlooker.reports.get(life.queue_id, [])

    def _counted_lost(self, queue_id: int) -> int:
        """Messages that the queue's master knows to be lost."""
        master = self.cluster.master(queue_id)
        return self.cluster.engine(master).replicas[queue_id].state.lost if master else 0

    def _unwanted_endings(self) -> list[str]:
        """Messages ended by limits and times of which no policy has said anything."""
        wanted = ["acked", "purged", *(self.policies.endings if self.policies is not None else ())]
        return [
            f"ended: sequence {sequence} of queue {queue_id} is {word}, which no policy allows"
            for queue_id, ended in self.cluster.onlooker.ended.items()
            for sequence, (word, _) in ended.items()
            if word not in wanted
        ]

    def _left(self) -> int:
        """How many messages the masters still have."""
        count = 0
        for life in self._lives():
            master = self.cluster.master(life.queue_id)
            if master is not None:
                count += self.cluster.engine(master).replicas[life.queue_id].state.live.count
        return count

    def _is_drained(self) -> bool:
        if self.members is not None and not self.members.is_settled():
            return False
        count = len(self.data_nodes)
        if self.fan is not None and not self.fan.is_drained:
            return False
        if not all(visits.is_over for visits in self._visits):
            return False
        if not all(crowd.is_drained(count) for crowd in self._crowds):
            return False
        return all(load.is_drained for load in self._all_loads) and all(
            len(self.cluster.in_sync(queue_id)) == count for queue_id in self._queue_ids()
        )

    def _situation(self) -> str:
        parts = [crowd.situation() for crowd in self._crowds]
        for load in self._all_loads:
            queue_id = load.life.queue_id
            master = self.cluster.master(queue_id)
            open_puts = sum(a.state == "open" for a in load.life.journal.attempts.values())
            live = None
            if master is not None:
                live = self.cluster.engine(master).replicas[queue_id].state.live.count
            parts.append(
                f"queue {queue_id}: master {master}, in sync {self.cluster.in_sync(queue_id)}, "
                f"{live} messages left, {open_puts} puts open"
                + (", being deleted" if load.is_changing else "")
            )
        return "; ".join(parts)
