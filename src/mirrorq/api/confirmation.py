"""`Confirmation` and `Settlement`: the results of `put` and `ack`, and `wait` for several of them.

They are not `concurrent.futures.Future`: a Future costs 2.2 µs, a confirmation has five fields and
shares the condition of its handle. `future` makes a Future on demand. A confirmation stays open
over pauses and failovers, and ends once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn, Self

import msgspec

from mirrorq.api.arguments import deadline_of, left_until
from mirrorq.api.completion import Outcomes
from mirrorq.api.waits import QUIET_S, Wait, Waits, in_thread, telling, wait_for_any
from mirrorq.errors import MirrorQError

Callback = Callable[[Any], object]
ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]


class _Outcome(msgspec.Struct, eq=False):
    """An outcome that ends once, with a value or an error. Held by its user, and by the call in the
    inbox or the session until it ends. The host's thread ends an outcome; any thread may wait."""

    # A Struct, because its constructor is C code: every put and every ack makes an outcome.
    _outcomes: Outcomes
    _is_done: bool = False
    _value: Any = None
    _error: MirrorQError | None = None
    _first: Callback | None = None
    """Callback to be called first at the end, before those of `add_done_callback`."""

    def done(self) -> bool:
        """Return true if the outcome is known."""
        return self._is_done

    def exception(self, timeout: float | None = None) -> MirrorQError | None:
        """Wait for the outcome; return its error, None on success.

        Raises:
            TimeoutError: there is no outcome yet after `timeout` seconds.
        """
        self._wait(timeout)
        return self._error

    def add_done_callback(self, callback: Callback) -> None:
        """Have `callback(self)` called at the end, on the handle's callback thread."""
        outcomes = self._outcomes
        if not self._is_done:
            callbacks = outcomes.callbacks.setdefault(self, deque())
            callbacks.append(callback)
            if self._is_done:
                # The end came before or after the append: the taker of a callback calls it.
                outcomes.callbacks.pop(self, None)
                outcomes.call_all(callbacks, self)
            return
        outcomes.call_back(callback, self)

    def future(self) -> Future[Any]:
        """Return a `concurrent.futures.Future` with the same outcome, for code that waits for
        futures: `concurrent.futures.wait`, `as_completed`, `asyncio.wrap_future`. It cannot be
        cancelled.
        """
        made: Future[Any] = Future()
        made.set_running_or_notify_cancel()
        self.add_done_callback(partial(_pass_on, made))
        return made

    def _wait(self, timeout: float | None) -> None:
        if not self._is_done and not in_thread(self._ending(timeout)):
            why = self._why_open() if timeout else ""
            raise TimeoutError(
                f"no outcome after {timeout} s: it stays open, wait again"
                + (f". It waits because {why}" if why else "")
            )

    def _ending(self, timeout: float | None) -> Waits[bool]:
        until = deadline_of(timeout)
        wait = Wait(self._outcomes.signal, self.done, until)
        return (yield from telling(wait, self._waits_text))

    def _waits_text(self) -> str:
        why = self._why_open()
        what = "confirmation" if isinstance(self, Confirmation) else "settlement"
        return f"a {what} has had no outcome for {QUIET_S:.0f} s" + (f": {why}" if why else "")

    def _why_open(self) -> str:
        ask = self._outcomes.why_open
        return "" if ask is None else ask(isinstance(self, Confirmation))

    def _finish(self, value: Any, error: MirrorQError | None) -> None:
        """End the outcome. Called on the host's thread, or by the only thread that knows it."""
        self._value = value
        self._error = error
        self._is_done = True
        if self._first is not None:
            self._outcomes.call_back(self._first, self)
            self._first = None
        if self._outcomes.callbacks:
            self._outcomes.call_all(self._outcomes.callbacks.pop(self, deque()), self)

    def _result(self, timeout: float | None) -> Any:
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._value

    def __await__(self) -> Generator[Any, None, Any]:
        # Code that awaits many outcomes does so when most have ended.
        if self._is_done and self._error is None and self._value is None:
            return iter(())  # type: ignore[return-value]
        return self._awaited()

    def _awaited(self) -> Generator[Any, None, Any]:
        if not self._is_done:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def wake(_: object) -> None:
                loop.call_soon_threadsafe(_resolve, future)

            self.add_done_callback(wake)
            yield from future
        if self._error is not None:
            raise self._error
        return self._value

    def __copy__(self) -> Self:
        return self  # a copy would never end

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} ends in this process and cannot be pickled: send its result")

    def __repr__(self) -> str:
        state = "open" if not self._is_done else repr(self._error or self._value)
        return f"<{type(self).__name__} {state}>"


def _pass_on(future: Future[Any], outcome: _Outcome) -> None:
    """Copy an outcome to a Future. On the callback thread."""
    if outcome._error is not None:
        future.set_exception(outcome._error)
    else:
        future.set_result(outcome._value)


def _resolve(future: asyncio.Future[None]) -> None:
    """Wake a task. On the loop's thread; the task may have been cancelled since."""
    if not future.done():
        future.set_result(None)


class Confirmation(_Outcome):
    """The outcome of a `put` or `put_many`: sequence(s), `NotConfirmed` or `ConfirmUnknown`.

    *Threads*: any may wait for it, several at once. Callbacks run on the handle's callback thread.
    """

    _is_duplicate: bool = False

    @property
    def is_duplicate(self) -> bool:
        """Whether the message was not stored because an earlier message has the same unique key.
        The earlier message's sequence is the `result`. Of several messages, or queues: whether
        none was stored. False while there is no outcome."""
        return self._is_duplicate

    @property
    def shard(self) -> int | None:
        """Number of the message's shard, to which the sequence in `result` belongs; None if the
        queue is not sharded."""
        return self._outcomes.shard

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the message is stable; return its sequence (put_many: a range).

        Durability: the message is then on disk on every member in sync.

        Raises:
            NotConfirmed: certainly not stored.
            ConfirmUnknown: it may be stored or not.
            TimeoutError: no outcome yet after `timeout` seconds.
        """
        return self._result(timeout)


class Settlement(_Outcome):
    """The outcome of an ack or nack: None or `AckRefused`; `ConfirmUnknown` if the handle was
    closed before the answer came.

    *Threads*: as with a `Confirmation`.
    """

    def result(self, timeout: float | None = None) -> None:
        """Wait until the ack is stable: a stable ack is never undone.

        Raises:
            AckRefused: no effect, and the message comes again. A loop that must survive uses
                `exception()`, or a listener (`MirroredQueue.add_ack_listener`).
            ConfirmUnknown: the handle was closed before the answer came.
            TimeoutError: no outcome yet after `timeout` seconds.
        """
        self._result(timeout)


class Waited(NamedTuple):
    """The result of `wait`."""

    done: set[Confirmation | Settlement]
    not_done: set[Confirmation | Settlement]


def wait(
    confirmations: Iterable[Confirmation | Settlement],
    timeout: float | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> Waited:
    """Wait until all have ended, or `timeout` seconds; return (done, not_done) sets.

    Args:
        timeout: in seconds; None: for ever.
        return_when: as in `concurrent.futures.wait`, with the same constants: FIRST_COMPLETED
            until the first end, FIRST_EXCEPTION until the first failure or all have ended.

    Raises:
        ValueError: `return_when` is not a constant of `concurrent.futures`.
        TypeError: something else than confirmations and settlements was given.
    """
    items = checked_wait(confirmations, return_when)
    if return_when == "ALL_COMPLETED":
        _wait_for_all(items, timeout)
    elif items:
        is_enough = _has_ended if return_when == "FIRST_COMPLETED" else _has_failed
        _wait_for_first(items, is_enough, timeout)
    return parted(items)


def checked_wait(
    confirmations: Iterable[Confirmation | Settlement], return_when: ReturnWhen
) -> list[Confirmation | Settlement]:
    """Return the outcomes to wait for. Errors as in `wait`."""
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise ValueError(f"return_when is {return_when!r}: see concurrent.futures.wait")
    items = list(confirmations) if isinstance(confirmations, Iterable) else [None]
    if not all(isinstance(one, _Outcome) for one in items):
        raise TypeError(f"wait() takes a list of confirmations, and this is {confirmations!r}")
    return items


def parted(items: Iterable[Confirmation | Settlement]) -> Waited:
    """Return the ended and the open outcomes: each is in one set."""
    is_done = {item: item.done() for item in items}
    return Waited(
        {item for item, is_one in is_done.items() if is_one},
        {item for item, is_one in is_done.items() if not is_one},
    )


def _wait_for_all(items: Sequence[_Outcome], timeout: float | None) -> None:
    deadline = deadline_of(timeout)
    for item in items:
        try:
            item._wait(left_until(deadline))
        except TimeoutError:
            return


def _has_ended(item: _Outcome) -> bool:
    return item._is_done


def _has_failed(item: _Outcome) -> bool:
    return item._error is not None


def _wait_for_first(
    items: Sequence[_Outcome], is_enough: Callable[[_Outcome], bool], timeout: float | None
) -> None:
    left = items

    def is_over() -> bool:
        """Return true if the wait is over. Ended outcomes are not looked at again."""
        nonlocal left
        ended: list[_Outcome] = []
        still_open: list[_Outcome] = []
        for item in left:
            (ended if item._is_done else still_open).append(item)
        left = still_open
        return not left or any(is_enough(item) for item in ended)

    wait_for_any({item._outcomes.signal for item in items}, is_over, timeout)
