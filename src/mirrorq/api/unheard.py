"""Logging in a program that has set up none: where lines go, and what they may contain."""

from __future__ import annotations

import logging

from mirrorq.protocol.printable import escaped


class Shown(logging.Filter):
    """Of the logger `mirrorq`: what a line is filled with, a name from elsewhere say, neither ends
    the line nor is obeyed by a terminal."""

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
    """Of the logger `mirrorq`, for programs that have set up no logging: an error goes to standard
    error, as Python would have it; all else goes nowhere. Where a logger has a handler, that one
    alone is asked."""

    def handle(self, record: logging.LogRecord) -> bool:
        last = logging.lastResort
        if record.levelno >= logging.ERROR and last is not None and not _is_heard(record.name):
            last.handle(record)
        return True


def _is_heard(name: str) -> bool:
    """Whether what is logged there reaches anybody."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
