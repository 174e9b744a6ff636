"""Settings of a Django project for the tests: where its node is comes by the environment."""

from __future__ import annotations

import os
from importlib.util import find_spec

SECRET_KEY = "of no use"
USE_TZ = True
INSTALLED_APPS = ["mirrorq.contrib.django"]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DATABASES: dict[str, object] = {}
_cache = "django.core.cache.backends.filebased.FileBasedCache"
CACHES = {"default": {"BACKEND": _cache, "LOCATION": os.environ.get("SHOP_CACHE", "")}}


def tasks(url: str) -> dict[str, object]:
    """TASKS with one backend, at this URL."""
    backend = "mirrorq.contrib.django.backend.MirrorQBackend"
    options = {"url": url, "result_cache": "default"}
    return {
        "default": {"BACKEND": backend, "QUEUES": ["default", "slow"], "OPTIONS": options},
        "other": {"BACKEND": backend, "OPTIONS": {"url": url}},
    }


TASKS = tasks(os.environ.get("SHOP_BROKER", ""))
