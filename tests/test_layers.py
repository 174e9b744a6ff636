"""Who may import whom, read from the source: the layers of docs/architecture.md.

A pure module gets its time, its randomness and its network from outside, so that a simulator can
play them and the same seed gives the same run. One import of `time` ends that, and nothing but
this test would notice.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "mirrorq"

ROOMS = {
    "containers": "",
    "protocol": "containers",
    "wire": "protocol containers _native",
    "session": "protocol containers",
    "transport": "protocol wire",
    "security": "transport protocol",
    "monitoring": "protocol containers",
    "cluster": "protocol containers",
    "replication": "protocol containers session",
    "store": "protocol wire containers _native",
    "engine": "cluster replication monitoring session protocol containers",
    "api": "session protocol wire containers monitoring security transport",
    "bulk": "api session protocol wire containers",
    "spool": "bulk api session protocol wire containers monitoring security transport",
    "client": "spool bulk api session protocol wire containers monitoring security transport",
    "dashboard": "api client monitoring protocol security transport",
    "node": "spool engine store cluster replication api client session protocol wire containers "
    "monitoring security transport dashboard",
    "aio": "spool bulk api client node session protocol wire containers monitoring security "
    "transport",
    "demo": "api client node session protocol wire containers monitoring security transport",
    "testing": "node client spool security store transport engine cluster replication api session "
    "protocol wire containers monitoring",
    "arrow": "bulk api protocol",
    "contrib": "aio bulk spool",
    "cli": "*",
    "_native": "",
}
"""What each room may import beside itself and `ROOT_FILES`: no import goes back up."""
ROOT_FILES = frozenset({"errors", "config", "clock", "system", "waiting"})
"""Modules beside the rooms, known to all of them."""

PURE = (
    "containers",
    "protocol",
    "session",
    "monitoring",
    "cluster",
    "replication",
    "engine",
    "errors",
    "spool/line",
    "security/roles",
    "node/bans",
    "node/ending",
    "node/permissions",
    "node/shortfall",
    "node/steady_time",
)
"""Rooms and modules that are state machines or data."""

IMPURE = frozenset(
    {
        "asyncio",
        "cffi",
        "concurrent",
        "lmdb",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "select",
        "selectors",
        "socket",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "uuid",
        "zmq",
    }
)
"""Clocks, chance, threads, files and networks."""

ONLY_IN = {"lmdb": "store", "zmq": "transport", "cffi": "_native"}
"""Each outside library is known to one package."""


def files_of(module: str) -> list[Path]:
    """Return the files of a module or package of mirrorq."""
    package = ROOT / module
    return sorted(package.rglob("*.py")) if package.is_dir() else [ROOT / f"{module}.py"]


def all_files() -> list[Path]:
    """Return every Python file of mirrorq."""
    return sorted(ROOT.rglob("*.py"))


PURE_FILES = [path for module in PURE for path in files_of(module)]


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def faults(paths: Iterable[Path], look: Callable[[Path], object]) -> dict[str, object]:
    """Return what `look` finds in these files, by file; files without a fault are left out."""
    found = {str(path): look(path) for path in paths}
    assert found, "no file was looked at"
    return {path: fault for path, fault in found.items() if fault}


def nodes_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without what stands under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from nodes_at_run_time(other)
            continue
        yield child
        yield from nodes_at_run_time(child)


def imported(path: Path) -> list[str]:
    """Return the full names of the modules that a file imports at run time."""
    names: list[str] = []
    for node in nodes_at_run_time(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module is not None
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_a_pure_module_sees_no_clock_no_chance_and_no_network() -> None:
    """A pure module imports nothing that can make two runs with one seed differ."""

    def impure(path: Path) -> list[str]:
        return sorted({name.partition(".")[0] for name in imported(path)} & IMPURE)

    assert faults(PURE_FILES, impure) == {}


def test_a_pure_module_imports_only_pure_ones() -> None:
    """Pure modules know each other and the limits, and nothing of who drives them."""

    def drivers(path: Path) -> list[str]:
        names = {module_of(name) for name in imported(path) if is_ours(name)}
        mine = {module.partition(".")[2].replace(".", "/") for module in names} - {"", "config"}
        return sorted(name for name in mine if not is_pure(name))

    assert faults(PURE_FILES, drivers) == {}


def is_pure(module: str) -> bool:
    """Tell whether a module of mirrorq, by its path without ending, is one of `PURE`."""
    return any(module == pure or module.startswith(f"{pure}/") for pure in PURE)


def is_ours(name: str) -> bool:
    """Tell whether an imported name is one of mirrorq."""
    return name.partition(".")[0] == "mirrorq"


def module_of(name: str) -> str:
    """Return the module that an imported name is, or stands in."""
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


def dotted(path: Path) -> str:
    """Return a file's name as a module."""
    parts = ["mirrorq", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in all_files()}


def room_of(module: str) -> str:
    """Return the room of a module, "" for one beside the rooms."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / parts[1]).is_dir() else ""


def known_to(module: str) -> set[str]:
    """Return all modules that one imports: for types, and inside functions, too."""
    names = set()
    for node in ast.walk(tree_of(MODULES[module])):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module_of(name) for name in names if is_ours(name)} - {module, "mirrorq"}


@cache
def known() -> dict[str, set[str]]:
    """Return what each module of mirrorq imports."""
    return {module: known_to(module) for module in MODULES}


def test_the_root_has_few_modules() -> None:
    """What is not in a room is what all rooms use, or what stands before all of them."""
    assert len(list(ROOT.glob("*.py"))) <= 8


def test_a_room_imports_only_what_is_below_it() -> None:
    """No import goes back up: not for a type, not inside a function."""
    back_up = [
        f"{module} -> {other}"
        for module, others in known().items()
        for other in others
        if room_of(module) in ROOMS and not may_know(room_of(module), other)
    ]
    assert sorted(back_up) == []


def may_know(room: str, module: str) -> bool:
    """Tell whether a room may import a module."""
    below = {room, *ROOMS[room].split()}
    return "*" in below or room_of(module) in below or module.partition(".")[2] in ROOT_FILES


def test_every_room_has_its_place() -> None:
    """A folder that the table above does not name may import what it likes, unseen."""
    assert sorted({room_of(module) for module in MODULES} - {"", *ROOMS}) == []


def test_there_are_no_circles() -> None:
    """No two modules know each other both ways: types, and imports in functions, counted."""
    assert circles() == {}


def circles() -> dict[str, list[str]]:
    """Return modules that reach themselves by imports, by the room that they are in."""
    reach = {module: reached(module) for module in known()}
    found: dict[str, list[str]] = {}
    for module, others in reach.items():
        if any(other != module and module in reach[other] for other in others):
            found.setdefault(room_of(module), []).append(module.partition(".")[2])
    return found


def reached(module: str) -> set[str]:
    """Return what a module imports, and what that imports, and so on."""
    found: set[str] = set()
    todo = [module]
    while todo:
        new = known()[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_an_outside_library_is_known_to_one_package() -> None:
    """LMDB, ZeroMQ and cffi each are behind one package, with their errors and their rules."""

    def strangers(path: Path) -> list[str]:
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        tops = {name.partition(".")[0] for name in imported(path)}
        return [library for library in ONLY_IN if library in tops and ONLY_IN[library] != room]

    assert faults(all_files(), strangers) == {}


CONNECTOR = ROOT.parents[1] / "spark_integration" / "pyspark_mirrorq"
PUBLIC = frozenset(
    {
        "",
        "api.message",
        "api.queue",
        "arrow",
        "bulk",
        "bulk.leases",
        "bulk.reading",
        "bulk.staging",
        "client.client",
        "config",
        "errors",
        "protocol.shard_names",
        "wire.properties",
    }
)
"""Modules of mirrorq in which public names are at home."""


def test_the_spark_connector_uses_public_names_only() -> None:
    """The connector is a user: a client, no node, and nothing of how either works."""

    def inside(path: Path) -> list[str]:
        names = imported(path)
        tops = {name.partition(".")[0] for name in names} & {"zmq", "lmdb", "cffi"}
        modules = {module_of(name) for name in names if is_ours(name)}
        ours = {module.removeprefix("mirrorq").strip(".") for module in modules}
        last = {name: name.rpartition(".")[2] for name in names}
        private = [name for name in names if last[name].startswith("_") and "._" in name]
        return [*sorted(tops), *sorted(ours - PUBLIC), *private]

    assert faults(sorted(CONNECTOR.glob("*.py")), inside) == {}


def sets_that_are_walked(path: Path) -> list[str]:
    """Return where a file iterates what is plainly a set, as `line: source`."""
    tree = tree_of(path)
    names = set_names(tree)
    harmless = order_free(tree)
    found = []
    for node in ast.walk(tree):
        walked: list[ast.expr] = []
        if isinstance(node, ast.For) or (
            isinstance(node, ast.comprehension) and id(node) not in harmless
        ):
            walked = [node.iter]
        elif isinstance(node, ast.Starred):
            walked = [node.value]
        elif isinstance(node, ast.Call) and name_of(node.func) in ORDER_KEEPING:
            walked = list(node.args[:1])
        found += [
            f"{expr.lineno}: {ast.unparse(expr)}"
            for expr in walked
            if is_set(expr, names.get(id(node), frozenset()))
        ]
    return found


ORDER_KEEPING = frozenset({"list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter"})
"""Calls that pass the order of their argument on; `sorted`, `len`, `any` do not."""
ORDER_FREE = frozenset({"sorted", "set", "frozenset", "any", "all", "min", "max", "sum", "len"})
"""Calls for whose result the order of a generator does not count."""


def name_of(expr: ast.expr) -> str:
    """Return the plain or the last dotted name of an expression, or ""."""
    if isinstance(expr, ast.Name):
        return expr.id
    return expr.attr if isinstance(expr, ast.Attribute) else ""


def is_set(expr: ast.expr, names: frozenset[str]) -> bool:
    """Tell whether an expression is a set as far as the source shows."""
    if isinstance(expr, ast.Set | ast.SetComp):
        return True
    if isinstance(expr, ast.Call):
        return isinstance(expr.func, ast.Name) and expr.func.id in ("set", "frozenset")
    if isinstance(expr, ast.BinOp):
        return is_set(expr.left, names) or is_set(expr.right, names)
    return ast.unparse(expr) in names


def set_names(tree: ast.AST) -> dict[int, frozenset[str]]:
    """Return, by the id of each node, what its function or class knows to be sets.

    A name counts within the function that annotates or assigns it, an attribute in the whole file.
    """
    attributes = frozenset(name for name in set_names_in(ast.walk(tree)) if "." in name)
    found: dict[int, frozenset[str]] = {}

    def visit(scope: ast.AST, outer: frozenset[str]) -> None:
        inside = list(nodes_of_scope(scope))
        hidden = {node.arg for node in inside if isinstance(node, ast.arg)}
        names = (outer - hidden) | set_names_in(inside)
        for node in inside:
            found[id(node)] = names
            if isinstance(node, SCOPES):
                visit(node, names if not isinstance(scope, ast.ClassDef) else outer)

    visit(tree, attributes)
    return found


SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def nodes_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, class or module, not what is inside inner ones."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, SCOPES):
            yield from nodes_of_scope(child)


def set_names_in(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names and attributes that are annotated as sets, or given one."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and is_set_type(node.annotation):
            found.append(ast.unparse(node.target))
        elif isinstance(node, ast.arg) and node.annotation and is_set_type(node.annotation):
            found.append(node.arg)
        elif isinstance(node, ast.Assign) and is_set(node.value, frozenset()):
            found += [ast.unparse(target) for target in node.targets]
    return frozenset(found)


def is_set_type(annotation: ast.expr) -> bool:
    """Tell whether an annotation names a set."""
    text = ast.unparse(annotation).strip("'\"")
    return text.startswith(("set[", "frozenset[", "AbstractSet[")) or text in ("set", "frozenset")


def order_free(tree: ast.AST) -> frozenset[int]:
    """Return the ids of the comprehensions whose result does not depend on the order."""
    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.SetComp):
            found += [id(part) for part in node.generators]
        elif isinstance(node, ast.Call) and name_of(node.func) in ORDER_FREE:
            for argument in node.args:
                if isinstance(argument, ast.GeneratorExp | ast.ListComp | ast.SetComp):
                    found += [id(part) for part in argument.generators]
    return frozenset(found)


def test_a_pure_module_iterates_no_set() -> None:
    """The order of a set of strings changes from process to process, and effects with it."""
    assert faults(PURE_FILES, sets_that_are_walked) == {}


def test_the_search_for_sets_finds_them(tmp_path: Path) -> None:
    """The test above can fail: each form that it knows is found, and harmless ones are not."""
    path = tmp_path / "example.py"
    path.write_text(
        "names: set[str] = set()\n"
        "for name in names: pass\n"
        "for name in {1, 2} | names: pass\n"
        "items = [name for name in names]\n"
        "first = next(iter(names))\n"
        "fine = sorted(names), any(name for name in names), len(names)\n"
        "def other(names: list[str]) -> None:\n"
        "    for name in names: pass\n"
        "for name in sorted(names): pass\n"
    )
    found = {int(line.partition(":")[0]) for line in sets_that_are_walked(path)}
    assert found == {2, 3, 4, 5}
