"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A loaded machine is no bug: no test depends on how long an example takes.
settings.register_profile("mirrorq", deadline=None)
settings.load_profile("mirrorq")
