"""Nodes and clients that stand still for a moment, again and again, each at times of its own.

On a busy machine any process may have to wait for its turn, so that one node knows what another
does not know yet. With `--stalls SEED` this happens all the time: a test that asks one node for
what only another one has shown fails soon. A seed repeats when each peer stands still, not what the
kernel does in between.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar
from weakref import WeakKeyDictionary

from mirrorq import Config
from mirrorq.client.driver import ClientDriver
from mirrorq.node.driver import Driver

AnyDriver = TypeVar("AnyDriver", Driver, ClientDriver)
SHORTEST_S, LONGEST_S = 0.02, 0.4


class Stalls:
    """Stops one process and lets it go on, until `end`.

    Args:
        choice: what its times are drawn from.
        config: of the peer; nobody stands still long enough to be taken for dead.
        send: signals the process, if it still runs.
    """

    def __init__(
        self, choice: random.Random, config: Mapping[str, int], send: Callable[[int], None]
    ) -> None:
        self._times = times_of(choice, Config(**config))
        self._send = send
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._is_held = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for runs_s, stands_s in self._times:
            if self._is_over.wait(runs_s):
                return
            self._unless_held(signal.SIGSTOP)
            self._is_over.wait(stands_s)
            self._unless_held(signal.SIGCONT)

    def _unless_held(self, number: int) -> None:
        with self._lock:
            if not self._is_held:
                self._send(number)

    def on_signal(self, number: int) -> None:
        """A test sends this: whom it stops stands still until it says otherwise."""
        with self._lock:
            self._is_held = number == signal.SIGSTOP
            self._send(number)

    def end(self) -> None:
        """It runs from now on."""
        self._is_over.set()
        self._thread.join()


def times_of(choice: random.Random, config: Config) -> Iterator[tuple[float, float]]:
    """For how long it runs and then stands still, again and again."""
    # Two that wait for each other are silent for twice as long.
    silent_s = (min(config.failure_ms, config.session_expiry_ms) - config.heartbeat_ms) / 2000
    longest_s = min(LONGEST_S, silent_s)
    while True:
        stands_s = choice.uniform(SHORTEST_S, longest_s)
        yield choice.uniform(SHORTEST_S, 2 * stands_s), stands_s


def delay_rounds(seed: str) -> None:
    """Nodes and clients of this process stand still, too: their threads sleep."""
    Driver._round = _delayed(Driver._round, random.Random(f"{seed} nodes"))  # type: ignore[method-assign]
    ClientDriver._round = _delayed(ClientDriver._round, random.Random(f"{seed} clients"))  # type: ignore[method-assign]


def _delayed(
    real: Callable[[AnyDriver], None], choice: random.Random
) -> Callable[[AnyDriver], None]:
    times: WeakKeyDictionary[AnyDriver, Iterator[tuple[float, float]]] = WeakKeyDictionary()
    next_s: WeakKeyDictionary[AnyDriver, float] = WeakKeyDictionary()

    def step(driver: AnyDriver) -> None:
        if time.monotonic() >= next_s.get(driver, 0.0):
            runs_s, stands_s = next(times.setdefault(driver, times_of(choice, Config())))
            time.sleep(stands_s)
            next_s[driver] = time.monotonic() + runs_s
        real(driver)

    return step
