"""The end of a `with` block of what is closed."""

from __future__ import annotations

import pytest

from mirrorq.api.closing import Closing
from mirrorq.errors import MirrorQError


class Forked(Closing):
    """As a node that a forked process inherits: it cannot be closed there."""

    def close(self) -> None:
        raise MirrorQError("of another process")


def test_the_blocks_own_exception_comes_out_of_it() -> None:
    """A child that leaves by `sys.exit` ends with its status."""
    with pytest.raises(SystemExit, match="3"), Forked():
        raise SystemExit(3)
    with pytest.raises(MirrorQError, match="of another process"), Forked():
        pass
