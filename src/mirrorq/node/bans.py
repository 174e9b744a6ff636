"""Names of disconnected clients: a node refuses them for as long as it runs.

A client that receives the news of its disconnection ends. Another client may miss the news, because
the client hung or its connection broke. Such a client comes back under the same name to any node.
So every node remembers the name. A program that connects anew has another name.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirrorq.monitoring.presence import parts_of_tag

NAMES_MAX = 4096
"""Maximum number of names; the oldest is forgotten."""


def expulsion_text(node: str, why: str) -> str:
    """Return the text for a disconnected client and its users."""
    reason = f": {why}" if why else ""
    return f"disconnected by an administrator at node {node}{reason}. connect() again to go on"


def consumer_text(node: str, why: str) -> str:
    """Return the text for a disconnected consumer and its users."""
    reason = f": {why}" if why else ""
    return f"disconnected by an administrator at node {node}{reason}. consume() again to go on"


def outcome_of(name: str, count: int, unheard: Sequence[str]) -> tuple[str, str]:
    """Return (name of the error class, text) for an attempt to disconnect a client, or the consumer
    of a tag; ("", "") after success."""
    if count:
        return "", ""
    is_tag = parts_of_tag(name) is not None
    if unheard:
        return "NoQuorum", (
            f"no {'consumer' if is_tag else 'client'} {name!r} is on the nodes that have "
            f"answered, and {', '.join(unheard)} did not: ask again"
        )
    if is_tag:
        return "PreconditionFailed", (
            f"no queue has a consumer {name!r}: mirrorq client consumers, or consumers(), lists "
            "those there are"
        )
    return "PreconditionFailed", (
        f"no node serves a client {name!r}: mirrorq client ls, or clients(), lists those there are"
    )


class Bans:
    """Names of clients that a node refuses. The gateway owns the object. Node thread only."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}

    def ban(self, name: str, text: str) -> None:
        """Refuse the client with the given name from now on."""
        self._why.pop(name, None)
        self._why[name] = text
        if len(self._why) > NAMES_MAX:
            del self._why[next(iter(self._why))]

    def why(self, name: str) -> str:
        """Return why a client is refused; "": accepted."""
        return self._why.get(name, "")
