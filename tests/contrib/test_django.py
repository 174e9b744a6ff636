"""The backend of Django's tasks, with workers that are processes: of Django 6 where it is there,
else of the package django-tasks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import django_site  # skips these where there is no Django
import pytest

# isort: split
import django_settings
import django_shop_tasks as work
from django.core.management import CommandError, call_command
from django.utils import timezone
from shop import DJANGO, Shop
from tests.kit import DEADLINE_S, until

import mirrorq
from mirrorq.contrib.django import api
from mirrorq.contrib.django import backend as ours


@pytest.fixture
def project(url: str, tmp_path: Path) -> Iterator[str]:
    with django_site.settings_for(url, tmp_path):
        yield url


@pytest.fixture
def shop(project: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(project, tmp_path)
    yield made
    made.end()


def finished(result: Any) -> Any:
    """The result, when it is one."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    until(is_finished)
    return result


def test_results_and_errors(shop: Shop) -> None:
    """Any process can ask how far a task is; a coroutine is run, an exception is kept."""
    results = [work.add.enqueue(2, number) for number in range(5)]
    assert results[0].status == "READY"
    slow = work.later.using(queue_name="slow", priority=100).enqueue(7)
    failed = work.fail.enqueue("no tea")
    shop.start((*DJANGO, "--worker-id", "w"))
    assert [finished(one).return_value for one in results] == [2, 3, 4, 5, 6]
    assert finished(slow).return_value == 7
    (error,) = finished(failed).errors
    assert (error.exception_class, "no tea" in error.traceback) == (ValueError, True)
    again = work.add.get_result(results[1].id)
    assert (again.return_value, again.worker_ids, again.attempts) == (3, ["w"], 1)
    assert again.enqueued_at == results[1].enqueued_at < again.finished_at
    with pytest.raises(api.TaskResultDoesNotExist):
        work.add.get_result("another")


def test_run_after_waits_in_the_queue(shop: Shop) -> None:
    """No worker holds what is not due, and none begins before."""
    due = timezone.now() + timedelta(seconds=4)
    result = work.when.using(run_after=due).enqueue()
    work.when.using(run_after=due + timedelta(days=1)).enqueue()
    shop.start(DJANGO)
    assert finished(result).return_value >= due.timestamp()
    with mirrorq.connect(shop.url) as client, client.queue("django.default") as queue:
        until(lambda: (queue.status().messages, queue.status().messages_unacknowledged) == (1, 0))


def test_the_higher_priority_first(shop: Shop) -> None:
    """All that Django allows, in the queue's own order."""
    for priority in (-100, 0, 50, 100):
        work.name.using(priority=priority).enqueue(str(priority))
    shop.start(DJANGO)
    until(lambda: len(shop.lines()) == 4)
    assert shop.lines() == ["100", "50", "0", "-100"]
    levels = [ours.priority_of(one) for one in range(-100, 101)]
    assert (levels[0], levels[-1], sorted(set(levels))) == (0, 31, list(range(32)))
    assert levels == sorted(levels)


def test_a_worker_is_killed(shop: Shop) -> None:
    """What it was at is run by another one, which counts it as tried before."""
    flag = str(shop.path / "flag")
    first = shop.start(DJANGO)
    result = work.hang_once.enqueue(flag)
    until(lambda: Path(flag).exists())
    shop.kill(first)
    shop.start((*DJANGO, "--worker-id", "second"))
    assert finished(result).worker_ids == ["not-known", "second"]
    assert shop.lines() == [flag, flag]


def test_a_worker_is_asked_to_end(shop: Shop) -> None:
    """It ends the task that it is at, gives back the others, and exits with 0."""
    worker = shop.start(DJANGO)
    assert finished(work.mark.enqueue(1)).return_value == 1
    worker.terminate()
    assert worker.wait(60) == 0
    assert finished_count(shop) == 1
    work.mark.enqueue(2)
    shop.start(DJANGO)
    until(lambda: finished_count(shop) == 2)
    assert shop.lines() == ["1 first", "2 first"]


def finished_count(shop: Shop) -> int:
    return len(shop.lines())


def test_a_task_that_nobody_knows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays in the queue, for a worker that has its code; others are run meanwhile."""
    result = work.add.enqueue(1, 2)
    body = ours.sealed(result).replace(b"django_shop_tasks.add", b"django_shop_tasks.gone")
    with mirrorq.connect(shop.url) as client, client.queue("django.default") as queue:
        queue.put(body).result(60)
        shop.start(DJANGO)
        assert finished(result).return_value == 3
        until(lambda: (queue.status().messages, queue.status().messages_unacknowledged) == (1, 0))


def test_a_queue_is_deleted(shop: Shop) -> None:
    """Worker and caller go on with the new one of its name."""
    shop.start(DJANGO)
    assert finished(work.add.enqueue(1, 1)).return_value == 2
    with mirrorq.connect(shop.url) as client:
        client.queue("django.default").delete()
    assert finished(work.add.enqueue(1, 2)).return_value == 3


def test_without_a_cache_there_are_no_results(project: str) -> None:
    result = work.add.using(backend="other").enqueue(1, 2)
    assert result.status == "READY"
    with pytest.raises(NotImplementedError):
        result.refresh()


def test_settings_and_arguments_are_checked(project: str) -> None:
    """What is wrong is said by `check`, or by the command."""
    good = django_settings.tasks(project)["default"]
    bad = {**good, "OPTIONS": {"ulr": project, "result_cache": "none"}}  # type: ignore[dict-item]
    found = ours.MirrorQBackend("default", bad).check()
    assert ["'ulr'" in one.msg for one in found] == [True, False]
    assert ours.MirrorQBackend("default", good).check() == []  # type: ignore[arg-type]
    for arguments in (["--queue", "none"], ["--threads", "0"], ["--backend", "third"]):
        with pytest.raises(CommandError):
            call_command("mirrorq_worker", *arguments, stdout=StringIO())


@pytest.mark.parametrize(
    "options",
    [
        {"confirm_timeout": "abc"},
        {"confirm_timeout": None},
        {"confirm_timeout": -1},
        {"result_ttl": "soon"},
        {"connect": {"typo": 1}},
        {"connect": "typo"},
    ],
    ids=str,
)
def test_values_of_options_are_checked(project: str, options: dict[str, object]) -> None:
    good = django_settings.tasks(project)["default"]
    backend = ours.MirrorQBackend("default", {**good, "OPTIONS": options})  # type: ignore[dict-item]
    (found,) = backend.check()
    assert f"TASKS['default'], {next(iter(options))}: {next(iter(options.values()))!r} are no" in (
        found.msg
    )


def test_a_worker_is_asked_to_end_while_it_waits_for_a_node(tmp_path: Path) -> None:
    """It exits with 0, and has not said that it takes tasks."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        shop = Shop(f"mirrorq://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        try:
            worker = shop.start(DJANGO)
            silent.accept()[0].close()
            worker.terminate()
            status = worker.wait(DEADLINE_S)
        finally:
            shop.end()
    said = (tmp_path / "w0.log").read_text()
    assert (status, "takes tasks" in said) == (0, False), said
