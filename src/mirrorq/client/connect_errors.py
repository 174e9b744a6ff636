"""Why no node lets a client in, judged from how its handshakes ended.

A node that does not know a key says so. When only one side has keys, or the node's key is not one
that the client trusts, the connection just ends; what the endpoint speaks tells the two apart
from a node that was being stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from mirrorq import clock
from mirrorq.errors import AuthenticationError
from mirrorq.security.roles import KEYS_NAME
from mirrorq.security.settings import Security
from mirrorq.transport.endpoint import Endpoint, parse_endpoint
from mirrorq.transport.greeting import mechanism_of
from mirrorq.transport.inbound import HandshakeRefused

ASK_S = 1.0
"""Longest wait for an endpoint to say what it speaks."""
ASKED_MAX = 3
"""An endpoint that says nothing so often is not asked again."""


class Inquiry:
    """Asks endpoints something, each on a thread of its own: a name server, or who accepts and
    says nothing, may take long, and nobody waits for an answer longer than he wants.

    Args:
        ask: (endpoint, seconds for each step) -> answer, "" when there is none.
        on_answer: called after each answer, on its thread.

    *Threads*: any.
    """

    def __init__(
        self, ask: Callable[[Endpoint, float], str], on_answer: Callable[[], None] | None = None
    ) -> None:
        self._ask = ask
        self._on_answer = on_answer
        self.answer_count = 0
        self._asked: dict[str, int] = {}
        """Endpoint -> how often."""
        self._under_way: dict[str, int] = {}
        """Endpoint -> since when it is asked."""
        self._answers: dict[str, str] = {}
        self._changed = threading.Condition()

    def begin(self, endpoint: str) -> None:
        """Ask, unless that is under way, was answered, or was in vain too often."""
        with self._changed:
            is_known = bool(self._answers.get(endpoint))
            asked = self._asked.get(endpoint, 0)
            if is_known or endpoint in self._under_way or asked >= ASKED_MAX:
                return
            self._asked[endpoint] = asked + 1
            self._under_way[endpoint] = clock.now_ms()
        threading.Thread(
            target=self._run, args=(endpoint,), name="mirrorq-inquiry", daemon=True
        ).start()

    def _run(self, endpoint: str) -> None:
        answer = self._ask(parse_endpoint(endpoint), ASK_S)
        with self._changed:
            self._answers[endpoint] = answer
            del self._under_way[endpoint]
            self.answer_count += 1
            self._changed.notify_all()
        if self._on_answer is not None:
            self._on_answer()

    def answer(self, endpoint: str) -> str:
        """What is known by now, "" for nothing."""
        return self._answers.get(endpoint, "")

    def silent_s(self, endpoint: str) -> float:
        """How long it has been asked in vain, seconds; 0: it is not being asked."""
        began_ms = self._under_way.get(endpoint)
        return 0.0 if began_ms is None else max(clock.now_ms() - began_ms, 100) / 1000

    def wait(self, timeout: float) -> None:
        """Wait until nothing is under way, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, timeout)


def tried_text(
    endpoints: Sequence[str], refused: Mapping[str, HandshakeRefused], silences: Inquiry
) -> str:
    """All endpoints, each with why it serves nobody, where that is known by now."""
    shown = []
    for text in endpoints:
        silent_s = silences.silent_s(text)
        why = f"no answer within {silent_s:.1f} s" if silent_s else silences.answer(text)
        if not why and text in refused:
            why = refused[text].why.removeprefix(f"{text} ")
        shown.append(f"{text} ({why})" if why else text)
    return ", ".join(shown)


class Refusals:
    """Of one client that tries to connect.

    Args:
        endpoints: that it tries.
        security: its keys.
        on_answer: called when an endpoint has said what it speaks, on a thread of its own.
    """

    def __init__(
        self, endpoints: Sequence[str], security: Security | None, on_answer: Callable[[], None]
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._security = security
        self._mechanisms = Inquiry(mechanism_of, on_answer)

    @property
    def answer_count(self) -> int:
        """How many endpoints have said what they speak, or that they say nothing."""
        return self._mechanisms.answer_count

    def error(
        self, refused: Mapping[str, HandshakeRefused], *, is_late: bool
    ) -> AuthenticationError | None:
        """What to raise, None to go on trying.

        Args:
            refused: the last refusal at each endpoint that has refused.
            is_late: the caller waits no longer. Before that all endpoints must have refused.
        """
        texts = [self._text(refused[text], is_late) for text in self._endpoints if text in refused]
        texts = [text for text in texts if text]
        if not texts or (not is_late and len(texts) < len(self._endpoints)):
            return None
        return AuthenticationError("; ".join(texts))

    def _text(self, refused: HandshakeRefused, is_late: bool) -> str:
        who = refused.who
        if refused.by_key and self._security is not None:
            return (
                f"key refused by {who}: it does not list the public key "
                f"{self._security.public_key}. Add it to the node's {KEYS_NAME}, or use another key"
            )
        spoken = self._mechanism(who)
        if spoken == "CURVE" and self._security is None:
            return (
                f"{who} requires keys: give it some, made by mirrorq key new (security=, or --keys "
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
        """What it speaks, "" when that is not known (yet)."""
        self._mechanisms.begin(who)
        return self._mechanisms.answer(who)
