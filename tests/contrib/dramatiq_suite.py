"""dramatiq's own tests, unchanged, with the stub broker swapped: `make dramatiq-suite`.

The fixtures that they name, which its sdist does not have: this file is their conftest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.rate_limits import backends as rate_limits
from dramatiq.results import backends as results

import mirrorq
from mirrorq.contrib.dramatiq import MirrorQBroker

FAIL_FAST = "join() is to raise what an actor has raised: the stub broker keeps exceptions"
INSIDE = "looks into the stub broker's own queues and dead letters"
NOT_OURS = {
    "test_actors_can_be_assigned_time_limits": FAIL_FAST,
    "test_actor_messages_can_be_assigned_time_limits": FAIL_FAST,
    "test_actors_can_be_assigned_message_age_limits": FAIL_FAST,
    "test_actor_messages_can_be_assigned_message_age_limits": FAIL_FAST,
    "test_messages_belonging_to_missing_actors_are_rejected": INSIDE,
    "test_workers_log_rate_limit_exceeded_errors_differently": FAIL_FAST,
    "test_actors_can_be_sent_messages": INSIDE,
    "test_worker_handles_non_numeric_eta_and_logs_warning": INSIDE,
    "test_worker_handles_none_eta": INSIDE,
    "test_stub_broker_can_be_flushed": INSIDE,
    "test_stub_broker_join_reraises_actor_exceptions_in_the_joining_current_thread": FAIL_FAST,
    "test_stub_broker_flush_all_does_not_break_dead_letters": INSIDE,
    "test_stub_broker_respects_prefetch": INSIDE,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each exception fails, and has its reason."""
    for item in items:
        why = NOT_OURS.get(item.name)
        if why is not None:
            item.add_marker(pytest.mark.xfail(reason=why, strict=True))


class Broker(MirrorQBroker):
    """Ours, with the argument that only the stub broker's `join` has."""

    def join(
        self, queue_name: str, *, timeout: int | None = None, fail_fast: bool | None = None
    ) -> None:
        super().join(queue_name, timeout=timeout)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mirrorq.Node]:
    path: Path = tmp_path_factory.mktemp("node")
    with mirrorq.Node("a", path=path, listen="tcp://127.0.0.1:0") as node:
        node.wait_ready(30)
        yield node


@pytest.fixture
def stub_broker(node: mirrorq.Node) -> Iterator[Any]:
    broker = Broker(node.listening)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_worker(stub_broker: Any) -> Iterator[Any]:
    worker = dramatiq.Worker(stub_broker, worker_timeout=100, worker_threads=8)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def stub_result_backend() -> Any:
    return results.StubBackend()


@pytest.fixture
def result_backend() -> Any:
    return results.StubBackend()


@pytest.fixture
def rate_limiter_backend() -> Any:
    return rate_limits.StubBackend()
