"""Builds the C part: two abi3 extensions for CPython 3.11 and later; and the page for an index."""

import re
import sys
import sysconfig
from pathlib import Path

from setuptools import setup


def page() -> str:
    """README.md without pictures, and without links to files beside it, which an index has not."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"^!\[.*\]\((?!https?:).*\)\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def options() -> dict[str, dict[str, str]]:
    """One wheel for all versions, but for builds without the GIL, which have no stable ABI."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return {}
    return {"bdist_wheel": {"py_limited_api": "cp311"}}


BUILD = "src/mirrorq/_native/build.py"
MODULES = [f"{BUILD}:wire"]
if sys.platform != "win32":
    MODULES.append(f"{BUILD}:rail")  # Threads and files of POSIX

setup(
    cffi_modules=MODULES,
    options=options(),
    long_description=page(),
    long_description_content_type="text/markdown",
)
