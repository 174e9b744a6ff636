"""The Python that Spark's workers run: it needs mirrorq too, and says so where that is missing.

What Spark sends to a worker names our classes, so a Python without them would fail on reading it,
with a trace that names neither the Python nor what to do. So it is sent inside of a function that
does.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["Sent", "check_python"]

LOOK = (
    "from importlib.util import find_spec as find; import sys; "
    "sys.exit(not all(map(find, ('mirrorq', 'pyspark_mirrorq'))))"
)
LOOK_S = 30


def opened(data: bytes) -> object:
    """What was sent. Sent itself, so it stands alone.

    Raises:
        ImportError: this Python has no mirrorq, or lacks what that needs.
    """
    import pickle
    import platform
    import sys

    try:
        kind, state = pickle.loads(data)
    except ImportError as error:
        raise ImportError(
            f"{sys.executable} on {platform.node()}, the Python of this Spark worker, cannot load "
            f"mirrorq: {error}. Run pip install 'mirrorq[spark]' for it, or have PYSPARK_PYTHON "
            "name a Python that has mirrorq before the session is made"
        ) from None
    made: object = object.__new__(kind)
    if hasattr(kind, "__setstate__"):
        kind.__setstate__(made, state)
    else:
        made.__dict__.update(state)
    return made


# Spark sends the code of what stands here, not its name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Sent:
    """What goes to workers."""

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (pickle.dumps((type(self), self.__getstate__())),)


def check_python(spark: SparkSession) -> None:
    """Look whether the Python that Spark runs on this machine has mirrorq, as far as that is known.

    Raises:
        ImportError: it has not.
    """
    python = _python_of(spark)
    if python is None:
        return
    try:
        done = subprocess.run([python, "-c", LOOK], timeout=LOOK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return  # it is there on the workers' machines alone
    if done.returncode == 1:
        raise ImportError(
            f"{python}, the Python that Spark runs, has no mirrorq: run pip install "
            f"'mirrorq[spark]' for it, or set PYSPARK_PYTHON={sys.executable} before the session "
            "is made"
        )


def _python_of(spark: SparkSession) -> str | None:
    """None: the session is of Spark Connect, or brings packages of its own along."""
    try:
        context = spark.sparkContext
    except (AttributeError, PySparkException):
        return None
    if context.getConf().get("spark.submit.pyFiles", ""):
        return None
    return str(context.pythonExec or os.environ.get("PYSPARK_PYTHON", "python3"))
