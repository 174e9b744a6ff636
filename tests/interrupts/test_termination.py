"""A signal that the application handles ends a call that waits for a majority."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from mirrorq.api.termination import Interruptible, handler_of, interruptible

DEADLINE_S = 120.0
NUMBERS = [signal.SIGTERM, signal.SIGINT]


class Application:
    """Its handlers, and what they have had."""

    def __init__(self) -> None:
        self.had: list[int] = []

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.had.append(number)

    def raise_one(self, number: int, frame: FrameType | None) -> None:
        self.had.append(number)
        raise KeyboardInterrupt


@pytest.fixture
def application() -> Iterator[Application]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    made = Application()
    for number in NUMBERS:
        signal.signal(number, made.handle)
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_handler_runs_and_then_the_call_ends(application: Application, number: int) -> None:
    """Nested calls end together; the handler is the application's again behind the outermost."""
    with Interruptible() as outer:
        with Interruptible() as inner:
            assert (outer.why, inner.why) == ("", "")
            assert handler_of(number) == application.handle
            signal.raise_signal(number)
            assert application.had == [number]
            assert outer.why == inner.why == f"{signal.Signals(number).name} has come"
        assert signal.getsignal(number) != application.handle
    assert signal.getsignal(number) == application.handle
    with Interruptible() as later:
        assert not later.why


def test_calls_that_overlap(application: Application) -> None:
    """Tasks of one loop: the first one that is over leaves the handler to the other."""
    first, second = Interruptible(), Interruptible()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    signal.raise_signal(signal.SIGTERM)
    assert (first.why, second.why) == ("", "SIGTERM has come")
    second.__exit__()
    assert signal.getsignal(signal.SIGTERM) == application.handle


def test_a_handler_that_raises(application: Application) -> None:
    signal.signal(signal.SIGINT, application.raise_one)
    call = Interruptible()
    with pytest.raises(KeyboardInterrupt), call:
        signal.raise_signal(signal.SIGINT)
    assert call.why
    assert signal.getsignal(signal.SIGINT) == application.raise_one


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN])
def test_dispositions_that_are_no_handlers_stay(
    application: Application, disposition: signal.Handlers
) -> None:
    signal.signal(signal.SIGTERM, disposition)
    with Interruptible():
        assert signal.getsignal(signal.SIGTERM) is disposition
    assert signal.getsignal(signal.SIGTERM) is disposition


@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_disposition_that_is_set_meanwhile_stays(
    application: Application, disposition: signal.Handlers
) -> None:
    with Interruptible():
        signal.signal(signal.SIGTERM, disposition)
    assert signal.getsignal(signal.SIGTERM) is disposition


def test_a_handler_that_chains_ours(application: Application) -> None:
    """Set during a call, it stays; in later calls each handler runs once."""
    with Interruptible():
        ours = signal.getsignal(signal.SIGTERM)
        assert callable(ours)

        def handle(number: int, frame: FrameType | None) -> None:
            application.had.append(-1)
            ours(number, frame)

        signal.signal(signal.SIGTERM, handle)
    assert signal.getsignal(signal.SIGTERM) is handle
    with Interruptible() as call:
        signal.raise_signal(signal.SIGTERM)
    assert (application.had, call.why) == ([-1, signal.SIGTERM], "SIGTERM has come")
    assert signal.getsignal(signal.SIGTERM) is handle


def test_an_old_handler_of_ours_that_is_set_again(application: Application) -> None:
    """An application that puts back what it found during a call has its own handler in the end."""
    with Interruptible():
        ours = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, ours)
    signal.raise_signal(signal.SIGTERM)
    assert application.had == [signal.SIGTERM]
    with Interruptible() as call:
        signal.raise_signal(signal.SIGTERM)
        assert call.why
    assert signal.getsignal(signal.SIGTERM) == application.handle


def test_a_thread_works_on_a_call() -> None:
    call, seen = Interruptible(), []

    def work() -> None:
        with interruptible() as found:
            seen.append(found)

    call.run_part(work)
    with interruptible() as other:
        seen.append(other)
    assert seen[0] is call
    assert seen[1] is not call


@pytest.mark.real
def test_another_thread_sets_no_handlers(application: Application) -> None:
    def work() -> None:
        with Interruptible():
            assert signal.getsignal(signal.SIGTERM) == application.handle
            seen.append(True)

    seen: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(DEADLINE_S)
    assert seen


# --- Processes that wait for a majority -----------------------------------------------------------

LOGGED = """
import asyncio, contextlib, logging, signal, sys, threading
import mirrorq
from mirrorq import aio
logging.basicConfig(level=logging.INFO)
PEERS = {"a": "tcp://127.0.0.1:0", "b": "tcp://127.0.0.1:9", "c": "tcp://127.0.0.1:10"}
path = sys.argv[-1] if __name__ == "__main__" else "store"
"""
SERVICE = """
@contextlib.asynccontextmanager
async def lifespan(app):
    async with aio.Node.open("a", path=path, peers=PEERS) as node:
        await node.%s
        yield

from starlette.applications import Starlette
app = Starlette(lifespan=lifespan)
"""
CLIENT_SERVICE = (
    SERVICE.replace('aio.Node.open("a", path=path, peers=PEERS)', "opened()")
    + """
def opened():
    return aio.connect("tcp://127.0.0.1:9", timeout=None)
"""
)
BLOCKING = """
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
with mirrorq.Node("a", path=path, peers=PEERS) as node:
    try:
        node.%s
    except mirrorq.ShutDown as error:
        print(stopping.is_set(), error)
"""
LOOP = """
async def main():
    node = await aio.Node.open("a", path=path, peers=PEERS)
    await node.queue("q", timeout=None)
asyncio.run(main())
"""
CANCELLED = """
async def main():
    node = await aio.Node.open("a", path=path, peers=PEERS)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.1):
            await node.queue("q", timeout=None)
asyncio.run(main())
"""


@contextmanager
def running(folder: Path, text: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "service.py").write_text(LOGGED + text, "utf-8")
    process = subprocess.Popen(
        [sys.executable, *(arguments or ("service.py", "store"))],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def rest_after(process: subprocess.Popen[str], number: int) -> str:
    """Send a signal when it waits, and return what it says from then on."""
    assert process.stdout is not None
    for line in process.stdout:
        if "waits" in line:
            break
    process.send_signal(number)
    return process.communicate(timeout=DEADLINE_S)[0]


UVICORN = ("-m", "uvicorn", "service:app", "--port", "0")


@pytest.mark.real
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize(
    "text",
    [SERVICE % 'queue("q", timeout=None)', SERVICE % "wait_ready()", CLIENT_SERVICE % "nodes()"],
    ids=["queue", "wait_ready", "client"],
)
def test_uvicorn_ends(tmp_path: Path, text: str, number: int) -> None:
    """Its lifespan waits without a bound; the signal is answered by the end of the process."""
    with running(tmp_path, text, *UVICORN) as process:
        said = rest_after(process, number)
    assert f"{signal.Signals(number).name} has come" in said
    assert "Application startup failed" in said


@pytest.mark.real
@pytest.mark.parametrize("call", ['queue("q", timeout=None)', "wait_ready()"])
def test_a_service_with_a_handler_of_its_own(tmp_path: Path, call: str) -> None:
    """The handler only notes the signal: the call raises ShutDown, and the node closes."""
    with running(tmp_path, BLOCKING % call) as process:
        said = rest_after(process, signal.SIGTERM)
    assert process.returncode == 0, said
    assert "True SIGTERM has come" in said


@pytest.mark.real
def test_an_interrupted_loop_ends(tmp_path: Path) -> None:
    """asyncio.run waits for the threads of its calls: their waits end."""
    with running(tmp_path, LOOP) as process:
        said = rest_after(process, signal.SIGINT)
    assert said.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.real
def test_a_cancelled_call_waits_no_longer(tmp_path: Path) -> None:
    """A call without a bound, under asyncio.timeout: the loop ends."""
    with running(tmp_path, CANCELLED) as process:
        said = process.communicate(timeout=DEADLINE_S)[0]
    assert process.returncode == 0, said
