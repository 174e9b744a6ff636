"""The Django app that brings the command `mirrorq_worker`."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["MirrorQConfig"]


class MirrorQConfig(AppConfig):  # type: ignore[misc]
    """No models: only the command."""

    name = "mirrorq.contrib.django"
    label = "mirrorq"
    verbose_name = "mirrorq"
