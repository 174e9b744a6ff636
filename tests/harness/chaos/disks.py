"""A place for each node's store that can be made full.

Where mounting is allowed each node has a small file system in memory of its own, and full is
full: of a file beside the store. Elsewhere the node's process may not make files longer, which
is the same to LMDB (`EFBIG` in the place of `ENOSPC`).
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

__all__ = ["Disks", "unmount_left"]

SIZE_MIB = 96
"""Of one node's file system. The stores of a run stay far below it."""
CHUNK = bytes(1 << 20)


class Disks:
    """The directories of all nodes, under one place."""

    def __init__(self, place: Path, names: tuple[str, ...]) -> None:
        self._paths = {name: place / f"disk-{name}" for name in names}
        self._mounted: list[Path] = []
        for path in self._paths.values():
            path.mkdir()
            if self._mount(path):
                self._mounted.append(path)

    def _mount(self, path: Path) -> bool:
        if os.geteuid() != 0:
            return False
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "mirrorq-chaos", str(path)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False

    def path(self, name: str) -> Path:
        """The directory of a node's store."""
        return self._paths[name] / "store"

    def fill(self, name: str, pid: int) -> None:
        """Nothing more fits on the node's disk from now on."""
        if self._paths[name] not in self._mounted:
            file = self.path(name) / "data.mdb"
            size = file.stat().st_size if file.exists() else 0
            _limit(pid, size)
            return
        with suppress(OSError), self._filler(name).open("ab", buffering=0) as file_object:
            while True:
                file_object.write(CHUNK)

    def drain(self, name: str, pid: int) -> None:
        """There is space again."""
        if self._paths[name] in self._mounted:
            self._filler(name).unlink(missing_ok=True)
        else:
            _limit(pid, resource.RLIM_INFINITY)

    def _filler(self, name: str) -> Path:
        return self._paths[name] / "filler"

    def wipe(self, name: str) -> None:
        """The node's store is gone."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def close(self) -> None:
        """Unmount; what was on the disks is gone."""
        for path in self._mounted:
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
        self._mounted.clear()


def unmount_left(place: Path) -> None:
    """What an interrupt at the very beginning has left mounted under a run's place."""
    for path in place.glob("disk-*"):
        if path.is_mount():
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def _limit(pid: int, size: int) -> None:
    # A process that has just died needs no limit.
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
