"""States in pages of a few messages each, and sets of ranges in chunks of a few: every boundary of
theirs is met by every fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from mirrorq.cluster.catalog import image
from mirrorq.cluster.controller import agenda
from mirrorq.cluster.raft import snapshot_pages
from mirrorq.containers import ranges
from mirrorq.engine import follower, hosting
from mirrorq.replication import checkpoints, donor
from mirrorq.replication.master import log_tail, ready_bytes, ready_messages, term
from mirrorq.replication.state import pages, paging, producer
from mirrorq.replication.state.pages import COLUMNS, MESSAGES, PRODUCERS


@contextmanager
def tiny_pages(entries: int = 6, part_bytes: int = 200) -> Iterator[None]:
    """While it lasts, each page and chunk has few entries, and each part and commit few pages;
    the catalog's too."""
    with ExitStack() as stack:
        few = {MESSAGES: entries, PRODUCERS: 2, COLUMNS: entries}
        least = {MESSAGES: 2, PRODUCERS: 1, COLUMNS: 2}
        stack.enter_context(patch.dict(pages.ENTRIES_MAX, few))
        stack.enter_context(patch.dict(pages.SMALL_MAX, least))
        for module in (checkpoints, donor):
            stack.enter_context(patch.object(module, "PART_BYTES", part_bytes))
        stack.enter_context(patch.object(ranges, "CHUNK_COUNT", 4))
        stack.enter_context(patch.object(ranges, "WARM_COUNT", 2))
        stack.enter_context(patch.object(checkpoints, "SWEEP_MAX", 2))
        stack.enter_context(patch.object(donor, "KNOWN_PAGES", 1))
        stack.enter_context(patch.object(pages, "PREIMAGES_MAX", 1))
        stack.enter_context(patch.object(pages, "KEPT_MAX", 3))
        stack.enter_context(patch.object(pages, "CACHED_PAGES", 2))
        stack.enter_context(patch.object(paging, "HELD_BLOCKS", 3))
        stack.enter_context(patch.object(log_tail, "SAID_COUNT", 2))
        stack.enter_context(patch.object(term, "BEGIN_COUNT", 3))
        stack.enter_context(patch.object(ready_messages, "ASIDE_COUNT", 1))
        stack.enter_context(patch.object(ready_messages, "STRETCH_RANGES", 2))
        stack.enter_context(patch.object(ready_messages, "STRETCH_WEIGHT", 1))
        stack.enter_context(patch.object(ready_bytes, "COUNT_RANGES", 2))
        stack.enter_context(patch.object(producer, "OPEN_PAGES", 1))
        stack.enter_context(patch.object(producer, "WALKED_PAGES", 1))
        stack.enter_context(patch.object(producer, "LOSER_PAGES", 1))
        stack.enter_context(patch.object(paging, "HELD_PAGES", 3))
        stack.enter_context(patch.object(image, "PAGE_BYTES", part_bytes))
        stack.enter_context(patch.object(image, "BINDINGS_AT_ONCE", 2))
        stack.enter_context(patch.object(snapshot_pages, "BYTES_IN_FLIGHT_MAX", 2 * part_bytes))
        stack.enter_context(patch.object(follower, "COMPACT_ENTRIES", 20))
        stack.enter_context(patch.object(follower, "APPLIED_MAX", 1))
        stack.enter_context(patch.object(agenda, "JUDGED_MAX", 1))
        stack.enter_context(patch.object(hosting, "TOLD_MAX", 1))
        stack.enter_context(patch.object(hosting, "RUN_MAX", 1))
        yield
