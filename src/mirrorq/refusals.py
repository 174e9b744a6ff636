"""Why no node lets a client in, judged from how its handshakes ended.

A node that does not know a key says so. When only one side has keys, or the node's key is not one
that the client trusts, the connection just ends; what the endpoint speaks tells the two apart
from a node that was being stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mirrorq.errors import AuthenticationError
from mirrorq.rights import KEYS_NAME
from mirrorq.security import Security
from mirrorq.transport import Refused, mechanism_of, parse_endpoint, silence_of

__all__ = ["Refusals", "tried_text"]

ASK_S = 1.0
"""Longest wait for an endpoint to say what it speaks."""
ASKED_MAX = 3
"""An endpoint that says nothing so often is not asked again."""


def tried_text(endpoints: Sequence[str], refused: Mapping[str, Refused]) -> str:
    """All endpoints, each with why it serves nobody, where that can be found out. Blocks for a
    moment: all are asked at the same time."""
    with ThreadPoolExecutor(len(endpoints)) as pool:
        reasons = list(pool.map(_silence, endpoints))
    shown = []
    for text, why in zip(endpoints, reasons, strict=True):
        if not why and text in refused:
            why = refused[text].why
        shown.append(f"{text} ({why})" if why else text)
    return ", ".join(shown)


def _silence(text: str) -> str:
    return silence_of(parse_endpoint(text), ASK_S)


class Refusals:
    """Of one client that tries to connect.

    Args:
        endpoints: that it tries.
        security: its keys.
    """

    def __init__(self, endpoints: Sequence[str], security: Security | None) -> None:
        self._endpoints = tuple(endpoints)
        self._security = security
        self._mechanisms: dict[str, str] = {}
        self._asked: dict[str, int] = {}

    def error(
        self, refused: Mapping[str, Refused], *, is_late: bool
    ) -> AuthenticationError | None:
        """What to raise, None to go on trying. May block for a moment.

        Args:
            refused: the last refusal at each endpoint that has refused.
            is_late: the caller waits no longer. Before that all endpoints must have refused.
        """
        texts = [self._text(refused[text], is_late) for text in self._endpoints if text in refused]
        texts = [text for text in texts if text]
        if not texts or (not is_late and len(texts) < len(self._endpoints)):
            return None
        return AuthenticationError("; ".join(texts))

    def _text(self, refused: Refused, is_late: bool) -> str:
        who = refused.who
        if refused.by_key and self._security is not None:
            return (
                f"key refused by {who}: it does not list the public key "
                f"{self._security.public_key}. Add it to the node's {KEYS_NAME}, or use another key"
            )
        spoken = self._mechanism(who)
        if spoken == "CURVE" and self._security is None:
            return (
                f"{who} requires keys: give it some, made by mirrorq keygen (security=, or --keys "
                "of a command)"
            )
        if spoken == "NULL" and self._security is not None:
            return (
                f"{who} has no keys, so it cannot be trusted: give the node keys, or leave those "
                "of this client out"
            )
        if spoken == "CURVE" and self._security is not None and is_late:
            return (
                f"{who} has none of the {len(self._security.node_keys())} nodes' keys that this "
                f"client was given: copy the cluster's {KEYS_NAME}"
            )
        return ""

    def _mechanism(self, who: str) -> str:
        asked = self._asked.get(who, 0)
        if not self._mechanisms.get(who) and asked < ASKED_MAX:
            self._asked[who] = asked + 1
            self._mechanisms[who] = mechanism_of(parse_endpoint(who), ASK_S)
        return self._mechanisms[who]
