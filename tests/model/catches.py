"""Which checker notices each mutation, and what it takes.

`TRACES` (in `traces`) are steps of the exploration. Here are scenarios of simulated clusters, of
one queue or of leases, and seeds of simulators. No mutation is without one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import frozen

from conformance import test_acting, test_unique
from conformance.faces import NodeFace, Stage
from core import test_blocks, test_master, test_producer_pages, test_unique_keys
from core import test_priorities as core_priorities
from core import test_transfer as core_transfer
from core.test_staging import test_every_order_in_two_queues as sealed_orders
from core.test_staging import test_every_order_of_two_drivers_and_their_tasks as staged_orders
from harness.explore import Found, begin
from harness.explore_search import PLANS, attempt, search
from harness.mutations.registry import MUTATIONS, mutation
from harness.tiny_pages import tiny_pages
from raft import test_core
from simulation import (
    test_catalog_portions,
    test_damage,
    test_dead_letters,
    test_ends,
    test_idle_queues,
    test_membership,
    test_promotion,
    test_replicated,
    test_survivor,
)
from store import test_pages
from supervisor import test_handover

from . import moments, runs, scenarios
from .complaints import complaint
from .traces import TRACES

WALKS = 300
"""Tried where a trace no longer fits: minutes, and only then."""


@frozen
class Seeds:
    """A simulator that complains under the mutation."""

    run: Callable[[int], str]
    checker: str
    """In its complaint."""
    seed: int
    """The first one that did, when last looked at."""
    within: int
    """One of so many, from 0 on, has to."""


@frozen
class Scenario:
    """Steps that somebody has thought out."""

    play: Callable[[], object]
    checker: str


@frozen
class Caught:
    """One mutation, one checker."""

    name: str
    checker: str
    how: str
    """exploration, scenario or seeds."""
    effort: str


def _stored_pages() -> None:
    """Enough lives that each rule of checkpoints matters in one of them."""
    with tiny_pages():
        for seed in range(6):
            test_pages.test_every_commit_leaves_the_last_whole_checkpoint(seed)


def _staged_pages() -> None:
    """Enough states that come, and break off, that each rule of what is retained matters."""
    with tiny_pages():
        test_pages.test_a_state_that_comes_is_staged_and_then_counts_at_once()


def _blocks() -> None:
    """What is read when it is wanted, against what is known of each message."""
    with tiny_pages():
        for seed in range(4):
            test_blocks.test_what_is_on_the_disk_alone_is_read_when_it_is_asked_for(seed)


def _producers() -> None:
    """What is read when it is wanted, against what is known of each producer."""
    with tiny_pages():
        for seed in range(4):
            test_producer_pages.test_producers_on_the_disk_alone_are_what_they_were(seed)


def _on_stage(test: Callable[[Stage], None]) -> Callable[[], None]:
    """A test of all faces, on a node's."""

    def play() -> None:
        with Stage(NodeFace, nodes=1) as stage:
            test(stage)

    play.__name__ = test.__name__
    return play


def _given_blocks() -> None:
    with tiny_pages():
        test_blocks.test_a_state_is_given_whole_though_blocks_end_meanwhile()


def _what_differs() -> None:
    with tiny_pages(part_bytes=100):
        for seed in range(4):
            core_transfer.test_a_copy_that_has_some_of_a_state_is_given_the_rest(None, seed)


def _catalog_behind_snapshot() -> None:
    test_catalog_portions.late(is_behind_snapshot=True)


SCENARIOS: dict[str, Scenario] = {
    "entries overtake the snapshot before them": Scenario(
        _catalog_behind_snapshot, "before the snapshot is read"
    ),
    "lease counts before the snapshot is read": Scenario(
        _catalog_behind_snapshot, "a lease counts too early"
    ),
    "copies that are not told at once never are": Scenario(
        _catalog_behind_snapshot, "a copy was not told"
    ),
    "copy stepped with an old view": Scenario(
        _catalog_behind_snapshot, "a copy is stepped with an old view"
    ),
    "counted in by the known stable mark only": Scenario(
        scenarios.predecessor_confirmed_more, "disk"
    ),
    "page that differs taken for the same": Scenario(_what_differs, ""),
    "changed page not written": Scenario(_stored_pages, ""),
    "page counted that the checkpoint does not cover": Scenario(_stored_pages, ""),
    "page of an older checkpoint counted": Scenario(_stored_pages, ""),
    "head written before its pages": Scenario(_stored_pages, ""),
    "stale pages stay on the disk": Scenario(_stored_pages, ""),
    "page retained counts with a later checkpoint": Scenario(_staged_pages, ""),
    "page retained counts in a state that has not got it": Scenario(_staged_pages, ""),
    "page retained beyond the head believed": Scenario(_staged_pages, ""),
    "page retained believed though another one is there": Scenario(_staged_pages, ""),
    "block of columns not written": Scenario(_stored_pages, ""),
    "block of an older checkpoint believed": Scenario(_blocks, ""),
    "page of producers not written": Scenario(_producers, ""),
    "page of producers that has changed since leaves the memory": Scenario(_producers, ""),
    "page of producers of an older checkpoint believed": Scenario(_producers, ""),
    "producers lost where a page is cut": Scenario(_producers, ""),
    "bytes of a block left out": Scenario(_blocks, ""),
    "bytes of a block counted twice": Scenario(_blocks, ""),
    "block skipped by a reader of times": Scenario(_blocks, ""),
    "block that ended taken off too early": Scenario(_given_blocks, ""),
    "dead on a refused probe alone": Scenario(scenarios.late_refusal, "check_eviction"),
    "delivery before all that is ready is sorted in": Scenario(
        core_priorities.test_nobody_is_served_before_all_is_sorted_in, ""
    ),
    "expires counted from each master's beginning": Scenario(
        test_idle_queues.test_masters_that_die_often_keep_no_idle_queue_alive, ""
    ),
    "a use of an idle queue not told": Scenario(
        test_idle_queues.test_a_use_after_a_while_is_known_to_the_next_master, ""
    ),
    "promise of another epoch": Scenario(
        test_handover.test_promises_of_others_and_of_other_epochs_are_none, "promises"
    ),
    "outbox published from an unstable op": Scenario(
        test_dead_letters.test_what_is_not_stable_is_published_nowhere, ""
    ),
    "outbox lost with its queue": Scenario(
        test_dead_letters.test_29_a_queue_goes_only_when_its_outbox_is_empty, "outbox"
    ),
    "outbox's id expires": Scenario(
        test_dead_letters.test_an_outbox_is_known_however_late_it_comes_back, ""
    ),
    "unique key never free again": Scenario(
        test_unique_keys.test_a_key_is_held_until_its_window_ends, ""
    ),
    "unique key put anew forgotten": Scenario(
        test_unique_keys.test_a_key_that_was_put_anew_is_not_forgotten, ""
    ),
    "unique key of a lost message held": Scenario(
        test_unique_keys.test_a_key_whose_message_was_lost_is_free, ""
    ),
    "repeat stays ready": Scenario(test_unique_keys.test_one_message_of_a_key_is_live, ""),
    "unique keys looked at where a message only passes": Scenario(
        _on_stage(test_unique.test_an_ack_and_put_brings_a_key_once), ""
    ),
    "unique key of a dead letter looked at": Scenario(
        _on_stage(test_unique.test_a_dead_letter_is_no_repeat), ""
    ),
    "range of a deletion ignored": Scenario(_on_stage(test_acting.test_one_message_ends), ""),
    "repeat judged by the queue's limit": Scenario(
        _on_stage(test_unique.test_a_full_queue_still_answers_a_repeat), ""
    ),
    "outcome told to the last session only": Scenario(
        test_master.test_a_late_publish_of_a_former_session_takes_no_confirm_away,
        "takes_no_confirm_away",
    ),
    "refused commit without fence": Scenario(staged_orders, "staged:"),
    "abort without fence": Scenario(staged_orders, "staged:"),
    "commit without chunk counts": Scenario(staged_orders, "staged:"),
    "commit applied twice": Scenario(staged_orders, "staged:"),
    "sealed run that expires": Scenario(sealed_orders, "staged:"),
    "question that fences nothing": Scenario(sealed_orders, "staged:"),
    "attempt begun again under its name": Scenario(scenarios.name_used_again, "staged:"),
    "survivor goes on in the old past": Scenario(
        test_survivor.test_one_of_the_lost_cluster_that_comes_back_is_a_stranger, "judge"
    ),
    "survivor keeps the old voters": Scenario(
        test_survivor.test_one_of_the_lost_cluster_that_comes_back_is_a_stranger, "until"
    ),
    "taken in by an entry that was not committed": Scenario(
        test_membership.test_a_node_that_a_cut_off_leader_took_in_joins_all_the_same, "until"
    ),
    "entries of an older term committed by counting": Scenario(
        test_core.test_entries_of_an_earlier_term_are_not_committed_by_counting, "by_counting"
    ),
    "voters changed before an entry of the own term": Scenario(
        test_core.test_voters_change_only_after_an_entry_of_the_own_term, "own_term"
    ),
    "lost message waited for": Scenario(
        test_damage.test_a_joiner_comes_in_sync_though_a_message_is_lost, "until"
    ),
    "copy that cannot be read leads": Scenario(
        test_damage.test_a_queue_waits_for_a_copy_that_can_be_read, "until"
    ),
    "min-in-sync ignored": Scenario(
        test_promotion.test_min_in_sync_withholds_confirms_until_members_are_back, "min_in_sync"
    ),
    "unclean promotion keeps the next sequence": Scenario(
        test_promotion.test_sequences_after_an_unclean_promotion_are_new, "sequences"
    ),
    "ack of a lost past taken": Scenario(
        test_promotion.test_what_was_delivered_before_an_unclean_promotion_cannot_be_acked_after_it,
        "cannot_be_acked",
    ),
}

TESTED: dict[str, Scenario] = {
    "restarted replicated member counted as in sync": Scenario(
        test_replicated.test_mutation_a_restarted_member_counted_as_in_sync_is_noticed, "two orders"
    ),
    "a failed node's close ends its logs": Scenario(
        test_ends.test_mutation_a_failed_nodes_close_that_ends_its_logs_is_noticed, "promise broken"
    ),
}
"""The test switches the mutation on by itself, and passes when its checker has objected."""

SEEDS: dict[str, Seeds] = {
    "lease without the commit index": Seeds(runs.leases, "check_leases", 15, 60),
    "lease from the grant's receipt": Seeds(runs.leases, "check_", 23, 60),
    "pause forgotten by the next master": Seeds(runs.acts, "unpaused", 7, 40),
    "unique keys forgotten by who reads a state": Seeds(runs.unique, "repeated: key", 58, 80),
    "unique key prolonged by each repeat": Seeds(runs.unique, "said to repeat", 3, 40),
    "limit judged on the applied state only": Seeds(runs.lengths, "28", 0, 12),
    "step's acks forgotten": Seeds(runs.chains, "no progress", 2, 4),
    "step's message forgotten": Seeds(runs.chains, "unpaired", 0, 2),
    "first queue's outcome told for all": Seeds(runs.fans, "uneven", 2, 6),
    "outbox forgets one more than has arrived": Seeds(moments.sent_on, "unsent", 0, 12),
    "unclean promotion loses in silence": Seeds(runs.unclean, "uncounted", 1, 42),
    "delay of a put forgotten": Seeds(runs.delays, "early", 1, 2),
    "durations by the wall clock": Seeds(runs.clocks, "time: ", 3, 4),
    "cut that keeps publishes on disk": Seeds(runs.store, "StoreCorrupt", 0, 3),
    "release of runs that are partly live": Seeds(runs.store, "messages_are_there", 0, 20),
    "checkpoint without its state": Seeds(runs.store, "log_is_equal", 0, 20),
    "deleted queue's runs come back": Seeds(runs.store, "", 2, 20),
    "fetched frames not written": Seeds(runs.store, "messages_are_there", 0, 20),
    "ack refused when it comes again": Seeds(runs.clients, "misrefused", 3, 10),
    "client's handle another one at its next entry node": Seeds(
        runs.entry_nodes, "overtaken", 0, 4
    ),
    "frames served unchecked": Seeds(runs.flips, "unexpected", 3, 20),
    "damaged frame not fetched": Seeds(runs.flips, "no progress", 8, 20),
    "awaited message overtaken": Seeds(runs.flips, "order", 11, 20),
    "others served beside a claim": Seeds(runs.holders, "claimed twice", 10, 40),
    "claim got beside others": Seeds(runs.holders, "acked at", 1, 40),
    "several consumers active at once": Seeds(runs.holders, "served beside the only one", 3, 10),
    "place of a dead handle kept": Seeds(runs.holders, "held by the dead", 0, 10),
    "message handed on while it is held": Seeds(runs.holders, "held twice", 0, 10),
    "exclusive queue outlives its handle": Seeds(runs.fleeting, "no progress", 0, 5),
    "exclusive queue ends with any handle of its node": Seeds(runs.fleeting, "ended", 0, 5),
    "owner that is silent is gone": Seeds(runs.owned, "ended", 4, 5),
    "everybody takes from a connection's queue": Seeds(runs.owned, "taken by others", 0, 5),
    "connection's queue declared by another one": Seeds(runs.owned, "two owners", 0, 5),
    "past life of a node keeps its queues": Seeds(runs.owned, "refused by its own past", 2, 5),
    "refused message stored all the same": Seeds(moments.full, "unexpected", 0, 2),
    "purged message stays ready": Seeds(moments.purged, "revived", 0, 2),
    "known number not answered": Seeds(moments.resent, "open", 1, 5),
    "half the voters keep a leader": Seeds(moments.halves, "two masters", 0, 3),
    "decided without a seal": Seeds(moments.pairs, "torn", 0, 5),
    "frames of ended messages kept": Seeds(moments.drained, "undrained", 0, 1),
    "applied ops kept in memory": Seeds(moments.drained, "undrained", 0, 1),
    "deleted queue stays on the disk": Seeds(runs.fleeting, "undeleted", 0, 5),
    "open request steps on without a leader": Seeds(moments.waiting, "busy", 0, 1),
    "lease not asked for again in time": Seeds(runs.brief, "asleep", 0, 3),
    "timer set and nobody told": Seeds(runs.brief, "asleep", 0, 3),
    "two votes in one term": Seeds(runs.storm, "two leaders of term", 3, 300),
    "votes of an older term counted": Seeds(runs.storm, "two leaders of term", 68, 300),
    "entry before the new ones not compared": Seeds(runs.storm, "log matching", 2, 300),
    "commit index taken beyond the request": Seeds(runs.storm, "state machine safety", 3, 300),
    "log cut to the end of each request": Seeds(runs.disorder, "leader completeness", 376, 600),
    "snapshot names an entry too many": Seeds(runs.raft, "catalogs differ", 0, 40),
    "ops from the rail put off": Seeds(runs.swarm, "confirmed too early", 4, 40),
    "portion of judgements left out": Seeds(runs.swarm, "no progress", 2, 40),
    "committed entry left out between two portions": Seeds(runs.raft, "catalogs differ", 1, 40),
    "committed entry applied in two portions": Seeds(runs.raft, "catalogs differ", 0, 40),
    "page of a snapshot taken twice": Seeds(runs.copying, "pages are not written", 2, 40),
    "cursor kept for a replica that was restarted": Seeds(
        runs.copying, "does not catch up", 17, 40
    ),
    "voters changed while a change is open": Seeds(runs.turnover, "leader completeness", 109, 300),
    "half the voters are a majority": Seeds(runs.storm, "two leaders of term", 0, 300),
    "vote for a log that is behind": Seeds(runs.storm, "leader completeness", 0, 300),
}


def catch(name: str, *, is_quick: bool) -> Caught | None:
    """Switch a mutation on and let its checker object; None when it does not.

    Args:
        is_quick: of seeds only the one that did before, then all; else all from 0 on.
    """
    if name in TESTED:
        found = complaint(TESTED[name].play)
        effort = TESTED[name].play.__name__
        return None if found else Caught(name, TESTED[name].checker, "scenario", effort)
    with mutation(name):
        if name in TRACES:
            return _by_trace(name)
        if name in SCENARIOS:
            scenario = SCENARIOS[name]
            found = complaint(scenario.play)
            effort = scenario.play.__name__
            if found and scenario.checker in found:
                return Caught(name, scenario.checker, "scenario", effort)
            return None
        seeds = SEEDS[name]
        for seed in _order(seeds) if is_quick else range(seeds.within):
            found = seeds.run(seed)
            if found and seeds.checker in found:
                said = found.split(":")[0]
                effort = f"{seed + 1} of {seeds.within} seeds of {seeds.run.__name__}"
                return Caught(name, said, "seeds", effort)
    return None


def _order(seeds: Seeds) -> Iterator[int]:
    yield seeds.seed
    yield from (seed for seed in range(seeds.within) if seed != seeds.seed)


def _by_trace(name: str) -> Caught | None:
    plan, checker, trace = TRACES[name]
    try:
        found = attempt(*begin(PLANS[plan]), trace)
    except Found as at_once:
        found = at_once
    if found is None:
        found = search(PLANS[plan], range(WALKS))
    if found is None or found.checker != checker:
        return None
    steps = len(found.trace)
    return Caught(name, checker, "exploration", f"{steps} steps" if steps else "the start")


def unaccounted() -> set[str]:
    """Mutations without a catch, and catches of mutations that are not there."""
    known = [*TRACES, *SCENARIOS, *TESTED, *SEEDS]
    twice = {name for name in known if known.count(name) > 1}
    return (set(MUTATIONS) ^ set(known)) | twice
