"""`mirrorq worker`: real processes that run a function on a queue's messages."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.kit import until

import mirrorq
from mirrorq.cli.worker import Work
from mirrorq.demo.ports import free_ports

from .running import COMMAND, COMMAND_S, Started, run_alone

JOBS = '''
import asyncio, os, signal, time, threading
seen = {}

def work(message):
    if message.body == b"poison":
        os.kill(os.getpid(), signal.SIGKILL)
    if message.body == b"bad" and message.delivery_count < 3:
        raise ValueError("not yet")
    if message.body == b"long":
        open("begun", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)

async def together(message):
    """Returns when three run at once."""
    seen[message.body] = 1
    while len(seen) < 3:
        await asyncio.sleep(0.01)
'''


@pytest.fixture
def client(endpoint: str) -> Iterator[mirrorq.Client]:
    """A client of the node."""
    with mirrorq.connect(endpoint, timeout=COMMAND_S) as found:
        yield found


@contextmanager
def working(tmp_path: Path, endpoint: str, queue: str, *options: str) -> Iterator[Started]:
    """A worker's process, killed at the end if it still runs."""
    (tmp_path / "jobs.py").write_text(JOBS)
    command = [*COMMAND, "worker", *options, "--queue", queue, "--connect", endpoint]
    with Started(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as one:
        yield one
        if one.poll() is None:
            one.kill()


def ended(worker: Started, status: int) -> str:
    """What it has printed, once it has ended with this status."""
    _, text = worker.communicate(timeout=COMMAND_S)
    assert worker.returncode == status, text.decode()
    return text.decode()


def test_what_returns_is_acked_and_what_raises_comes_again(
    tmp_path: Path, endpoint: str, client: mirrorq.Client
) -> None:
    queue = client.queue("plain")
    queue.put_many([b"good", b"bad", b"good"]).result(COMMAND_S)
    with working(tmp_path, endpoint, "plain", "jobs:work", "--concurrency", "2") as worker:
        until(lambda: not queue.browse())
        worker.terminate()
        text = ended(worker, 0)
    assert "worker of queue plain: 3 done" in text
    assert "2 failed" in text


def test_an_async_function_runs_in_one_loop(
    tmp_path: Path, endpoint: str, client: mirrorq.Client
) -> None:
    queue = client.queue("loop")
    queue.put_many([b"1", b"2", b"3"]).result(COMMAND_S)
    with working(tmp_path, endpoint, "loop", "jobs:together", "--concurrency", "3") as worker:
        until(lambda: not queue.browse())
        worker.send_signal(signal.SIGINT)
        assert "3 done" in ended(worker, 0)


async def hidden(_: object) -> None:
    """As behind a plain decorator: what is called returns a coroutine, and runs nothing."""


def yields(_: object) -> Iterator[None]:
    yield


async def awaits_what_was_cancelled(_: object) -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def cancels_itself(_: object) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("function", "error", "counts"),
    [
        (lambda _: hidden(_), TypeError, (0, 1, 0)),
        (yields, TypeError, (0, 1, 0)),
        (awaits_what_was_cancelled, asyncio.CancelledError, (0, 1, 0)),
        (cancels_itself, asyncio.CancelledError, (0, 1, 0)),
    ],
)
def test_what_a_call_that_did_not_finish_counts_as(
    function: Any, error: type[BaseException], counts: tuple[int, int, int]
) -> None:
    """Failed, also when the function has cancelled its own task."""
    work = Work("q", function, 1, {}, 1.0)
    message: Any = None

    def call() -> None:
        if asyncio.iscoroutinefunction(function):
            asyncio.run(work._work_in_loop(message))
        else:
            work._work(message)

    with pytest.raises(error):
        call()
    assert (work.done, work.failed, work.in_hand) == counts


def test_a_call_that_is_cut_at_the_end_stays_in_hand() -> None:
    """Its message comes again, and the worker says so."""

    async def sleep(_: object) -> None:
        await asyncio.sleep(60)

    work = Work("q", sleep, 1, {}, 1.0)

    async def main() -> None:
        task = asyncio.create_task(work._work_in_loop(None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (work.done, work.failed, work.in_hand) == (0, 0, 1)


def test_the_first_signal_lets_a_message_be_finished(
    tmp_path: Path, endpoint: str, client: mirrorq.Client
) -> None:
    queue = client.queue("slow")
    queue.put_many([b"long", b"next"]).result(COMMAND_S)
    with working(tmp_path, endpoint, "slow", "jobs:work") as worker:
        until((tmp_path / "begun").exists)
        worker.terminate()
        assert worker.stderr is not None
        while b"1 messages in hand" not in worker.stderr.readline():
            pass
        (tmp_path / "go").touch()
        assert "1 done" in ended(worker, 0)
    assert queue.get(timeout=COMMAND_S).body == b"next"


@pytest.mark.parametrize("is_twice", [False, True])
def test_a_message_that_is_not_finished_comes_again(
    tmp_path: Path, endpoint: str, client: mirrorq.Client, is_twice: bool
) -> None:
    """At the second signal at once, else when --stop-timeout is over."""
    queue = client.queue(f"never{is_twice:d}")
    queue.put(b"long").result(COMMAND_S)
    limit = "600" if is_twice else "0.2"
    options = ("jobs:work", "--stop-timeout", limit)
    with working(tmp_path, endpoint, queue.name, *options) as worker:
        until((tmp_path / "begun").exists)
        worker.terminate()
        if is_twice:
            assert worker.stderr is not None
            while b"a second signal ends it" not in worker.stderr.readline():
                pass
            worker.terminate()
            ended(worker, -signal.SIGTERM)
        else:
            assert "1 messages of queue never0 were not finished" in ended(worker, 1)
    message = queue.get(timeout=COMMAND_S)
    assert message.redelivered
    message.ack().result(COMMAND_S)


def test_a_message_that_kills_its_process_goes_alone(
    tmp_path: Path, endpoint: str, client: mirrorq.Client
) -> None:
    """Processes that die are replaced; of the messages around it none becomes a dead letter."""
    client.set_policy("poison", "^poison$", {"delivery-limit": 1, "dead-letter-queue": "failed"})
    queue, failed = client.queue("poison"), client.queue("failed")
    bodies = [b"%d" % number for number in range(400)]
    queue.put_many([*bodies[:200], b"poison", *bodies[200:]]).result(COMMAND_S)
    options = ("jobs:work", "--processes", "2", "--concurrency", "4", "--prefetch", "100")
    with working(tmp_path, endpoint, "poison", *options) as worker:
        until(lambda: not queue.browse())
        until(lambda: failed.status().messages == 1, lambda: [m.body for m in failed.browse()], 20)
        worker.terminate()
        assert "has ended with status -9" in ended(worker, 0)
    assert failed.get(timeout=COMMAND_S).body == b"poison"


def test_its_counts_are_served(tmp_path: Path, endpoint: str, client: mirrorq.Client) -> None:
    """To this machine; to others only when that is allowed."""
    arguments = ("worker", "json:loads", "--queue", "q", "--metrics", "0.0.0.0:9465")
    run = run_alone(*arguments, "--connect", endpoint)
    assert run.returncode == 1
    assert b"could be read by other machines" in run.stderr
    queue, port = client.queue("counted"), free_ports(1)[0]
    queue.put_many([b"1", b"2"]).result(COMMAND_S)
    with working(tmp_path, endpoint, "counted", "jobs:work", "--metrics", str(port)) as worker:
        until(lambda: not queue.browse())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=COMMAND_S) as page:
            assert b'mirrorq_worker_done{queue="counted"}' in page.read()
        worker.terminate()
        ended(worker, 0)


def test_a_queue_that_is_deleted_ends_its_worker(
    tmp_path: Path, endpoint: str, client: mirrorq.Client
) -> None:
    queue = client.queue("gone")
    with working(tmp_path, endpoint, "gone", "jobs:work") as worker:
        until(lambda: queue.status().consumers == 1)
        queue.delete()
        assert "queue gone has ended the worker" in ended(worker, 1)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("jobs", "names no function"),
        ("nowhere:work", "module 'nowhere' cannot be imported"),
        ("json:nothing", "module 'json' has no function 'nothing'"),
    ],
)
def test_a_function_that_is_not_there(endpoint: str, function: str, text: str) -> None:
    for more in ((), ("--processes", "2")):
        run = run_alone("worker", function, "--queue", "q", "--connect", endpoint, *more)
        assert run.returncode == 2
        assert text in run.stderr.decode()
