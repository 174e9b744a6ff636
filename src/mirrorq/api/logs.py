"""The logger `mirrorq`: where its lines go without logging set-up, and what an application's own
handlers and filters cannot break."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from mirrorq.protocol.printable import escaped


def prepare_logger(logger: logging.Logger) -> None:
    """Prepare the library's logger. The application chooses the destination of its lines."""
    logger.addHandler(Unheard())
    logger.addFilter(Shown())
    handle = logger.handle

    def guarded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception:
            # On the main thread a signal handler of the user may have raised it. In a loop it would
            # end one of our tasks, and tell nobody.
            is_main = threading.current_thread() is threading.main_thread()
            loops: Any = sys.modules.get("asyncio")  # not imported: `import mirrorq` stays cheap
            if is_main and (loops is None or loops._get_running_loop() is None):
                raise
            logging.NullHandler().handleError(record)

    # A handler or filter of the application that raises would end a thread of ours.
    logger.handle = guarded  # type: ignore[method-assign]


class Shown(logging.Filter):
    """Filter of the logger `mirrorq`: arguments of a line, such as names from outside, cannot end
    the line or control a terminal."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        return True


def _shown(value: object) -> object:
    if not isinstance(value, str | BaseException):
        return value
    text = str(value)
    safe = escaped(text)
    return value if safe == text else safe


class Unheard(logging.NullHandler):
    """Handler of the logger `mirrorq` for programs without logging set-up: an error goes to
    standard error, as by Python's default; other lines are dropped. Python's default is off once a
    logger has a handler."""

    def handle(self, record: logging.LogRecord) -> bool:
        last = logging.lastResort
        if record.levelno >= logging.ERROR and last is not None and not _is_heard(record.name):
            last.handle(record)
        return True


def _is_heard(name: str) -> bool:
    """Return true if a handler other than a NullHandler gets the logger's lines."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
