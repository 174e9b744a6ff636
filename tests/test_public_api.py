"""What is public changes only by hand: each name that the reference shows, with its signature.

Who changes the public API writes it into `public_api.txt` too, where whoever reviews it sees what
users will meet. Nothing writes that file: the difference that this test prints is what to edit.
docs/upgrades.md says which changes are allowed, and when.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import pytest

import mirrorq
import mirrorq.aio
from mirrorq.api.options import DEFAULTS

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
SNAPSHOT = Path(__file__).with_name("public_api.txt")
BLOCK = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
FILTERS = re.compile(r"filters: (.*)")
SEPARATORS = {
    griffe.ParameterKind.var_positional: "*",
    griffe.ParameterKind.var_keyword: "**",
}
CONFIG = "mirrorq.Config."
EXTRAS = (
    "mirrorq.contrib.dramatiq",
    "mirrorq.contrib.opentelemetry",
    "mirrorq.contrib.taskiq",
)
"""What is for frameworks has pages of its own: what stands in `__all__` is public there. Of `kombu`
that is what kombu asks of a transport."""
PROTOCOLS = ("__enter__", "__iter__", "__aenter__", "__aiter__", "__await__")
MADE_BY_USERS = (
    "mirrorq.MirroredQueue",
    "mirrorq.Node",
    "mirrorq.Config",
    "mirrorq.Key",
    "mirrorq.Security",
    "mirrorq.metrics.Collector",
    "mirrorq.testing.SimulatedCluster",
    "mirrorq.contrib.dramatiq.MirrorQBroker",
    "mirrorq.contrib.taskiq.MirrorQBroker",
    "mirrorq.contrib.taskiq.MirrorQResultBackend",
)
"""All other classes are made by calls: what their constructors take is nobody's business."""


def shown() -> dict[str, list[str]]:
    """Public names, and by which patterns members of each are hidden."""
    pages = "".join(
        page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("reference-*.md"))
    )
    found: dict[str, list[str]] = {}
    for name, block in BLOCK.findall(pages):
        filters = FILTERS.search(block)
        hidden = [one[1:] for one in json.loads(filters[1])] if filters else ["^_"]
        found[name] = hidden
    for name in mirrorq.__all__:
        found.setdefault(f"mirrorq.{name}", ["^_"])
    for name in mirrorq.aio.__all__:
        found.setdefault(f"mirrorq.aio.{name}", ["^_"])
    return found


def loaded() -> griffe.ModulesCollection:
    """mirrorq and the connector, read and not run: the same under each Python."""
    extensions = griffe.load_extensions("unpack_typeddict")
    paths = [ROOT / "src", ROOT / "spark_integration"]
    loader = griffe.GriffeLoader(extensions=extensions, search_paths=paths)
    loader.load("mirrorq")
    loader.load("pyspark_mirrorq")
    loader.resolve_aliases()
    return loader.modules_collection


def parameter_text(parameter: Any) -> str:
    text = SEPARATORS.get(parameter.kind, "") + parameter.name
    if parameter.annotation is not None:
        text += f": {parameter.annotation}"
    if parameter.default == "...":
        text += f" = {DEFAULTS.get(parameter.name)!r}"
    elif parameter.default is not None and parameter.kind not in SEPARATORS:
        text += f" = {parameter.default}"
    return text


def signature(function: Any) -> str:
    texts: list[str] = []
    is_keyword = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not is_keyword:
            is_keyword = True
            if not any(text.startswith("*") for text in texts):
                texts.append("*")
        texts.append(parameter_text(parameter))
    is_async = "async " if "async" in function.labels else ""
    return f"{is_async}({', '.join(texts)}) -> {function.returns}"


def lines_of(name: str, what: Any, hidden: list[str]) -> Iterator[str]:
    """A line for a name, and one for each member that the reference shows."""
    if what.is_function:
        for overload in what.overloads or ():
            yield f"{name} overload {signature(overload)}"
        yield f"{name} {signature(what)}"
    elif what.is_attribute:
        kind = "property" if "property" in what.labels else "attribute"
        default = f" = {getattr(mirrorq.Config(), what.name)!r}" if CONFIG in name else ""
        yield f"{name} {kind} {what.annotation}{default}"
    else:
        if what.is_class:
            bases = ", ".join(str(base) for base in what.bases)
            yield f"{name} class({bases})"
        for member, inside in sorted(what.all_members.items()):
            is_shown = not any(re.search(one, member) for one in hidden)
            is_foreign = what.is_module and (inside.is_alias or inside.is_module)
            is_made = member == "__init__" and name in MADE_BY_USERS
            if (is_shown and not is_foreign) or member in PROTOCOLS or is_made:
                yield from lines_of(f"{name}.{member}", inside, hidden)


def public() -> list[str]:
    """One line for each public name."""
    modules = loaded()
    names = shown()
    for module in EXTRAS:
        names |= {f"{module}.{name}": ["^_"] for name in modules[module].exports or ()}
    lines: set[str] = set()
    for name, hidden in names.items():
        lines.update(lines_of(name, modules[name], hidden))
    return sorted(lines)


def test_the_public_api_is_what_the_file_says() -> None:
    """Names and signatures; a change is made in the file by hand, and in CHANGELOG.md."""
    written = SNAPSHOT.read_text("utf-8").splitlines()
    diff = difflib.unified_diff(written, public(), "public_api.txt", "the code", lineterm="", n=0)
    found = [*diff]
    assert not found, "\n".join(["what users see has changed:", *found])
