"""Runs targets: counts, watches time and memory, and says how to do one input again."""

from __future__ import annotations

import ctypes
import faulthandler
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import FrameType

from attrs import define, field

from .readers import Target

INPUT_CPU_S = 5.0
"""Processor time after which an input is taken for a hang; most need some 0.0001 s."""
STUCK_S = 600.0
"""Nothing moves for so long, not even signals: the stacks are printed and the process ends."""
GROWTH_BYTES_MAX = 24 << 20
"""Memory may grow by this after the first tenth of a target's inputs."""
PEAK_BYTES_MAX = 300 << 20
"""No single input may take more than about this for a moment: sizes that lie cost nothing."""


class Hang(BaseException):
    """An input took too long. No handler of errors must catch it."""


@define
class Outcome:
    """What came of one target."""

    name: str
    inputs: int = 0
    took_s: float = 0.0
    growth_bytes: int = 0
    wrong: list[str] = field(factory=list)


def run(
    target: Target,
    seed: int,
    numbers: Sequence[int],
    show: Callable[[int], None],
    input_cpu_s: float = INPUT_CPU_S,
) -> Outcome:
    """Feed a target the inputs of these numbers."""
    outcome = Outcome(target.name)
    began = time.monotonic()
    give_back_memory()
    warm = rss_bytes()
    peak = peak_bytes()
    with guarded(input_cpu_s) as arm:
        for done, number in enumerate(numbers):
            if done % max(1, 500 // target.inputs) == 0:
                faulthandler.dump_traceback_later(STUCK_S, exit=True)
                show(done)
            if done == len(numbers) // 10:
                warm, peak = max(warm, rss_bytes()), peak_bytes()
            arm()
            try:
                target.run(Random(f"{seed}/{target.name}/{number}"))
            except (Exception, Hang) as error:
                outcome.wrong.append(described(target, seed, number, error))
                if len(outcome.wrong) >= 5:
                    break
            outcome.inputs += target.inputs
    faulthandler.cancel_dump_traceback_later()
    outcome.took_s = time.monotonic() - began
    outcome.growth_bytes = rss_bytes() - warm
    if outcome.growth_bytes > GROWTH_BYTES_MAX:
        outcome.wrong.append(f"{target.name}: memory grew by {outcome.growth_bytes} bytes")
    if peak_bytes() - peak > PEAK_BYTES_MAX:
        outcome.wrong.append(f"{target.name}: an input took {peak_bytes() - peak} bytes")
    return outcome


def described(target: Target, seed: int, number: int, error: BaseException) -> str:
    trace = "".join(traceback.format_exception(error)[-8:])
    again = f"python -m fuzz --target {target.name} --seed {seed} --only {number}"
    return f"{trace}again: cd tests && {again}"


@contextmanager
def guarded(input_cpu_s: float) -> Iterator[Callable[[], None]]:
    """Gives a function that starts one input's processor time anew; `Hang` when it is over."""

    def on_end(_: int, frame: FrameType | None) -> None:
        raise Hang(f"after {input_cpu_s} s of processor time")

    before = signal.signal(signal.SIGPROF, on_end)
    try:
        yield lambda: _start_timer(input_cpu_s)
    finally:
        _start_timer(0.0)
        signal.signal(signal.SIGPROF, before)


def _start_timer(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)


def give_back_memory() -> None:
    """What others have freed in this process goes back to the system, where its C library can:
    growth would hide in it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def rss_bytes() -> int:
    """Memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
