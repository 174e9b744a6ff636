"""Why no node lets a client in, judged by the end of its handshakes.

A node that does not know a key says so. When only one side has keys, or the client does not trust
the node's key, the connection just ends. The mechanism of the endpoint tells both cases apart from
a node that was being stopped.
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
"""Longest wait for an endpoint to tell its mechanism."""
ASKED_MAX = 3
"""An endpoint is not asked again after this many questions without an answer."""


class Inquiry:
    """Asks endpoints a question, each on a thread of its own: a name server or a silent endpoint
    may take long, and no caller waits longer for an answer than wanted.

    Args:
        ask: (endpoint, seconds for each step) -> answer, "" without an answer.
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
        """Endpoint -> number of questions."""
        self._under_way: dict[str, int] = {}
        """Endpoint -> time of the open question."""
        self._answers: dict[str, str] = {}
        self._changed = threading.Condition()

    def ask(self, endpoint: str) -> None:
        """Ask an endpoint, unless a question is open, was answered, or failed too often."""
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
        """Return the endpoint's answer so far, "" without an answer."""
        return self._answers.get(endpoint, "")

    def silent_s(self, endpoint: str) -> float:
        """Return the seconds for which a question has been open; 0 without an open question."""
        began_ms = self._under_way.get(endpoint)
        return 0.0 if began_ms is None else max(clock.now_ms() - began_ms, 100) / 1000

    def wait(self, timeout: float) -> None:
        """Wait until nothing is under way, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way, timeout)


def tried_text(
    endpoints: Sequence[str], refused: Mapping[str, HandshakeRefused], silences: Inquiry
) -> str:
    """Return all endpoints, each with the known reason why the endpoint serves no client."""
    shown = []
    for text in endpoints:
        silent_s = silences.silent_s(text)
        why = f"no answer within {silent_s:.1f} s" if silent_s else silences.answer(text)
        if not why and text in refused:
            why = refused[text].why.removeprefix(f"{text} ")
        shown.append(f"{text} ({why})" if why else text)
    return ", ".join(shown)


class Refusals:
    """Refusals of one client that tries to connect.

    Args:
        endpoints: endpoints that the client tries.
        security: keys of the client.
        on_answer: called when an endpoint has told its mechanism, on a thread of its own.
    """

    def __init__(
        self, endpoints: Sequence[str], security: Security | None, on_answer: Callable[[], None]
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._security = security
        self._mechanisms = Inquiry(mechanism_of, on_answer)

    @property
    def answer_count(self) -> int:
        """Number of endpoints that have told their mechanism, or have not answered."""
        return self._mechanisms.answer_count

    def error(
        self, refused: Mapping[str, HandshakeRefused], *, is_late: bool
    ) -> AuthenticationError | None:
        """Return the error to raise, None to go on trying.

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
        """Return the mechanism of an endpoint, "" while unknown."""
        self._mechanisms.ask(who)
        return self._mechanisms.answer(who)
