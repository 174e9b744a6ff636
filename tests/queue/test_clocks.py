"""Wall clocks of real nodes that differ by an hour, and are set: durations are durations."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mirrorq
from mirrorq import clock
