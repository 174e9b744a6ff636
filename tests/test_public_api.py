"""What is public changes only by hand: each name that the reference shows, with its signature.

Who changes the public API writes it into `public_api.txt` too, where whoever reviews it sees what
users will meet. Nothing writes that file: the difference that this test prints is what to edit.
docs/upgrades.md says which changes are allowed, and when.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import queue
import re
from collections.abc import Iterator
from functools import cache
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
EXTENDING = (*EXTRAS, "mirrorq.metrics")
"""Modules whose classes extend those of a framework: what these have is the framework's."""
PROTOCOLS = {
    "__enter__": "with",
    "__aenter__": "async-with",
    "__iter__": "for",
    "__aiter__": "async-for",
    "__await__": "await",
}
"""What a class may be used with: it stands in the class's own line."""
DROP_INS = ("mirrorq.MirroredQueue", "mirrorq.QueueAdapter")
STDLIB = (
    *("empty", "full", "get", "get_nowait", "join", "put", "put_nowait", "qsize", "task_done"),
)
"""Calls of `queue.Queue`: one line names those that a drop-in has with the same parameters."""
TWINS = {
    "mirrorq.Client": "mirrorq.Node",
    "mirrorq.Settlement": "mirrorq.Confirmation",
    "mirrorq.SpawnedNode": "mirrorq.Node",
    "mirrorq.SpoolConfirmation": "mirrorq.Confirmation",
    "mirrorq.SpooledQueue": "mirrorq.MirroredQueue",
    "mirrorq.aio.Client": "mirrorq.Client",
    "mirrorq.aio.Exchange": "mirrorq.Exchange",
    "mirrorq.aio.MirroredQueue": "mirrorq.MirroredQueue",
    "mirrorq.aio.Node": "mirrorq.Node",
    "mirrorq.aio.SpoolClient": "mirrorq.SpoolClient",
    "mirrorq.aio.SpooledQueue": "mirrorq.SpooledQueue",
    "mirrorq.aio.Transaction": "mirrorq.Transaction",
    "mirrorq.aio.Consumer": "mirrorq.Consumer",
    "mirrorq.aio.stdlib_queue.QueueAdapter": "mirrorq.QueueAdapter",
}
"""A class, and the class whose members it repeats. A member with the same name, parameters, types
and result has no line of its own: one line of the class names all such members."""
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
        page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("reference*.md"))
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


@cache
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


def lines_of(name: str, what: Any, hidden: list[str], seen: set[str]) -> Iterator[str]:
    """A line for a name, and one for each member that the reference shows.

    A class or function that has several names gets lines under the shortest one: the others are in
    `seen`.
    """
    what = what.final_target if what.is_alias else what
    if not what.is_module and what.parent.is_module:
        if what.path in seen:
            return
        seen.add(what.path)
    if what.is_function:
        yield f"{name} {signature(what)}"
    elif what.is_attribute:
        default = f" = {getattr(mirrorq.Config(), what.name)!r}" if CONFIG in name else ""
        yield f"{name} attribute {what.annotation}{default}"
    else:
        if what.is_class:
            bases = ", ".join(str(base) for base in what.bases)
            uses = [word for one, word in PROTOCOLS.items() if one in what.all_members]
            yield " ".join([f"{name} class({bases})", *uses])
        for member, inside in members_of(name, what, hidden).items():
            yield from lines_of(f"{name}.{member}", inside, hidden, seen)


def members_of(name: str, what: Any, hidden: list[str]) -> dict[str, Any]:
    """The members that the reference shows, and the constructor where users call it."""
    theirs = framework_names(name) if name.startswith(EXTENDING) and what.is_class else set()
    found: dict[str, Any] = {}
    for member, inside in sorted(promised(what).items()):
        is_shown = not any(re.search(one, member) for one in hidden)
        is_foreign = what.is_module and (inside.is_alias or inside.is_module)
        is_made = member == "__init__" and name in MADE_BY_USERS
        if (is_shown and not is_foreign and member not in theirs) or is_made:
            found[member] = inside
    return found


def is_stdlib(function: Any) -> bool:
    """Tell whether a call has the parameters and defaults of `queue.Queue`, and a plain result."""
    ours = [(one.name, str(one.default)) for one in function.parameters]
    theirs = inspect.signature(getattr(queue.Queue, function.name)).parameters.values()
    defaults = [None if one.default is one.empty else one.default for one in theirs]
    is_same = ours == [(one.name, str(value)) for one, value in zip(theirs, defaults, strict=True)]
    return is_same and str(function.returns) in ("None", "Item", "bool", "int")


def promised(what: Any) -> dict[str, Any]:
    """All members of a class or module, without those of `Tuning`: these may go in any release."""
    members: dict[str, Any] = what.all_members
    if what.canonical_path == "mirrorq.config.Config":
        return dict(what.members)
    return members


def framework_names(name: str) -> set[str]:
    """What a class has because the class of a framework, which it extends, has it."""
    module, _, kind = name.rpartition(".")
    bases = getattr(importlib.import_module(module), kind).__mro__[1:]
    return {one for base in bases if not base.__module__.startswith("mirrorq") for one in dir(base)}


def twin_lines(lines: set[str]) -> set[str]:
    """The lines with one in place of those that only repeat what the class's twin has."""
    found = set(lines)
    for name, twin in TWINS.items():
        has: list[str] = []
        awaits: list[str] = []
        for line in sorted(lines):
            member, _, rest = line.removeprefix(f"{name}.").partition(" ")
            if not line.startswith(f"{name}."):
                continue
            for kind, text in ((has, rest), (awaits, rest.removeprefix("async "))):
                if f"{twin}.{member} {text}" in lines and member not in has:
                    kind.append(member)
                    found.discard(line)
        texts = [f"has {', '.join(has)}"] * bool(has) + [f"awaits {', '.join(awaits)}"] * bool(
            awaits
        )
        found.add(f"{name} as {twin}: {'; '.join(texts)}")
    return found


def public() -> list[str]:
    """One line for each public name."""
    modules = loaded()
    names = shown()
    for module in EXTRAS:
        names |= {f"{module}.{name}": ["^_"] for name in modules[module].exports or ()}
    lines: set[str] = set()
    seen: set[str] = set()
    for name, hidden in sorted(names.items(), key=lambda one: (one[0].count("."), one)):
        lines.update(lines_of(name, modules[name], hidden, seen))
    lines = twin_lines(lines)
    for name in DROP_INS:
        members = modules[name].all_members
        same = [one for one in STDLIB if one in members and is_stdlib(members[one])]
        lines = {line for line in lines if line.split()[0] not in {f"{name}.{one}" for one in same}}
        lines.add(f"{name} as queue.Queue: has {', '.join(same)}")
    return sorted(lines)


def test_the_public_api_is_what_the_file_says() -> None:
    """Names and signatures; a change is made in the file by hand, and in CHANGELOG.md."""
    written = SNAPSHOT.read_text("utf-8").splitlines()
    diff = difflib.unified_diff(written, public(), "public_api.txt", "the code", lineterm="", n=0)
    found = [*diff]
    assert not found, "\n".join(["what users see has changed:", *found])
