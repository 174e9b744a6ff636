"""What a run complains of, as a sentence that begins with the name of a checker."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable


def one_of_each(wrong: Iterable[str]) -> str:
    """One sentence of each checker; those of a queue's journal begin with the queue."""
    texts = [re.sub(r"^queue \d+: ", "", sentence) for sentence in wrong]
    kinds = {re.split(r"[^a-z ]", text, maxsplit=1)[0]: text for text in texts}
    return "; ".join(kinds.values())


def complaint(run: Callable[[], object]) -> str:
    """What a run's own checkers raise: the innermost function of a test that did, and its words."""
    try:
        run()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [frame for frame in frames if "/tests/" in frame.filename]
        where = frames[-1] if not isinstance(error, AssertionError) or not inside else inside[-1]
        return f"{where.name}: {type(error).__name__} {error}".split("\n")[0][:300]
    return ""
