"""Django, set up in the process of the tests, or these are skipped."""

# ruff: noqa: E402  (Django is set up before what uses it is imported)
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("django")
if find_spec("django.tasks") is None:
    pytest.importorskip("django_tasks")

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "django_settings"
django.setup()
# Celery's tests in this process would take it for a project of Django's.
del os.environ["DJANGO_SETTINGS_MODULE"]

import django_settings
from django.test import override_settings

from mirrorq.contrib.django import backend


@contextmanager
def settings_for(url: str, path: Path) -> Iterator[None]:
    """Settings with a test's nodes and a cache of its own."""
    caches = {"default": {**django_settings.CACHES["default"], "LOCATION": str(path / "cache")}}
    with override_settings(TASKS=django_settings.tasks(url), CACHES=caches):
        yield
    for client in backend._clients.values():
        client.close()
    backend._clients.clear()
