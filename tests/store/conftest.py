"""Directories for stores."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .writing import MEMORY, Writer


@pytest.fixture
def path() -> Iterator[Path]:
    """A path for a store; in memory where there is such a place: most tests need no disk."""
    directory = Path(tempfile.mkdtemp(dir=MEMORY))
    yield directory / "store"
    shutil.rmtree(directory)


@pytest.fixture
def writer() -> Writer:
    """What makes the ops of one queue."""
    return Writer()
