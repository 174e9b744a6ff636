"""README and docs/ are true: their Python runs as it stands, their commands are understood."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.kit import DEADLINE_S, free_endpoint, until

import mirrorq
from mirrorq.cli import main
from mirrorq.demo.ports import free_ports

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RUN_HERE = {
    "README.md",
    "arrow.md",
    "start.md",
    "clients.md",
    "coming-from.md",
    "members.md",
    "partitions.md",
    "policies.md",
    "security.md",
    "testing.md",
}
SCRIPTS = {
    "deployment.md",
    "asyncio.md",
    "worker.md",
    "fastapi.md",
}
"""Run here too, as processes."""
RUN_ELSEWHERE = {
    "celery.md": "contrib/test_celery_page.py",
    "frameworks.md": "contrib/test_framework_pages.py",
    "monitoring.md": "metrics/test_monitoring_page.py",
    "spark.md": "spark/test_page.py",
}
FENCE = re.compile(r'^```python(?: title="(.*?)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?: {4})?(?:[A-Z_]+=\S+ )*mirrorq (?!-)(.*)$", re.MULTILINE)


def text_of(page: str) -> str:
    """A page with the ports that it names replaced by free ones, so that it runs twice at once."""
    text = ((ROOT if page == "README.md" else DOCS) / page).read_text(encoding="utf-8")
    named = sorted(set(re.findall(r"(?:127\.0\.0|10\.0\.0)\.\d:74\d\d", text)))
    for place, port in zip(named, free_ports(len(named)), strict=True):
        text = text.replace(place, f"127.0.0.1:{port}")
    return text


def closables(values: Any) -> Iterator[Any]:
    for value in list(values):
        if isinstance(value, mirrorq.Node | mirrorq.Client):
            yield value
        elif isinstance(value, dict):
            yield from closables(value.values())


def run(page: str, text: str, names: dict[str, Any]) -> None:
    """Run a page's blocks as one program, and close what it leaves open when it fails."""
    blocks = list(FENCE.finditer(text))
    assert blocks
    try:
        for block in blocks:
            # Line numbers of a failure are those of the page.
            above = "\n" * text.count("\n", 0, block.start(2))
            exec(compile(above + block[2], page, "exec"), names)
    finally:
        for each in closables(names.values()):
            each.close()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_page_with_python_is_run_somewhere() -> None:
    """Who writes a page says here where its code runs."""
    pages = {page.name for page in DOCS.glob("*.md") if FENCE.search(page.read_text("utf-8"))}
    assert pages | {"README.md"} == RUN_HERE | SCRIPTS | set(RUN_ELSEWHERE)
    for test in RUN_ELSEWHERE.values():
        assert (ROOT / "tests" / test).is_file()


@pytest.mark.parametrize("page", ["start.md", "coming-from.md", "members.md", "partitions.md"])
def test_a_page_that_needs_nothing(page: str) -> None:
    """In order, as one program; without the blocks that are scripts of their own."""
    text = FENCE.sub(
        lambda block: "\n" * block[0].count("\n") if block[1] else block[0], text_of(page)
    )
    run(page, text, {"__name__": page})


@pytest.mark.parametrize("library", ["", "pandas", "polars", "duckdb"])
def test_arrow(library: str) -> None:
    """What needs pyarrow alone, and the block of each library that is installed."""
    if library:
        pytest.importorskip(library)
    blocks = [
        block[0] for block in FENCE.finditer(text_of("arrow.md")) if (block[1] or "") == library
    ]
    assert len(blocks) == 1
    run("arrow.md", blocks[0], {})


@pytest.mark.smoke
def test_the_readme() -> None:
    """As it is pasted: one block after the other."""
    run("README.md", text_of("README.md"), {})


def test_clients() -> None:
    """Against a node at the endpoint that the page names."""
    text = text_of("clients.md")
    found = re.search(r'endpoint = "(tcp://.*?)"', text)
    assert found
    with mirrorq.Node("a", path="a", listen=found[1]):
        run("clients.md", text, {})


def test_testing() -> None:
    """Its tests are run as pytest would run them."""
    names: dict[str, Any] = {}
    run("testing.md", text_of("testing.md"), names)
    tests = [name for name in names if name.startswith("test_")]
    assert len(tests) == 5
    for name in tests:
        names[name]()


def test_policies() -> None:
    with mirrorq.Node("a", path="a") as node:
        node.wait_ready(DEADLINE_S)
        run("policies.md", text_of("policies.md"), {"node": node})


def test_security() -> None:
    """With keys made as the page says."""
    keygen("a", "--role", "peer")
    keygen("web", "--write", "orders.*")
    endpoint = free_endpoint()
    names = {"mirrorq": mirrorq, "peers": {"a": endpoint}, "endpoints": endpoint}
    run("security.md", text_of("security.md"), names)


def keygen(*arguments: str) -> None:
    done = CliRunner().invoke(main, ["key", "new", *arguments, "--keys", "keys"])
    assert done.exit_code == 0, done.output


def scripts_of(page: str) -> None:
    """Write the page's scripts into the folder in which the test runs."""
    titled = [(title, code) for title, code in FENCE.findall(text_of(page)) if title]
    assert titled
    for title, code in titled:
        assert title.endswith(".py")
        Path(title).write_text(code, encoding="utf-8")


def start(ending: ExitStack, *arguments: str) -> subprocess.Popen[str]:
    """Run a script, which is ended with the test."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    ending.callback(process.stdout.close)
    ending.callback(process.wait)
    ending.callback(process.kill)
    return process


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_processes() -> None:
    scripts_of("start.md")
    with ExitStack() as ending:
        anywhere = start(ending, "anywhere.py")
        assert line_of(anywhere) == "1"
        assert line_of(anywhere) == "espresso"
        assert anywhere.wait(DEADLINE_S) == 0
        stop_local()
        serve = start(ending, "serve.py")
        assert line_of(serve) == "serving"
        work = start(ending, "work.py")
        assert [line_of(work) for _ in range(4)] == ["range(1, 4)", "1", "2", "3"]
        assert work.wait(DEADLINE_S) == 0
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(DEADLINE_S) == -signal.SIGTERM


class ThreeHosts:
    """The page's program on three hosts, its first jobs confirmed, and a client that puts more."""

    def __init__(self, ending: ExitStack) -> None:
        scripts_of("start.md")
        text = text_of("start.md")
        for line in re.findall("^mirrorq key new (.*) --keys keys$", text, re.MULTILINE):
            keygen(*line.split())
        keygen("load", "--write", "jobs")
        self.done: list[tuple[str, str]] = []
        """(host, what it has printed of a job)."""
        self.processes = {name: start(ending, "service.py", name) for name in "abc"}
        assert line_of(self.processes["a"]) == "confirmed range(1, 101)"
        for name in "abc":
            listener = Thread(target=self._listen, args=(name,))
            listener.start()
            ending.callback(listener.join, DEADLINE_S)
            ending.callback(self.processes[name].kill)
        self.endpoints = re.findall(r"tcp://[\d.:]+", Path("service.py").read_text("utf-8"))
        self.client = ending.enter_context(
            mirrorq.connect(
                self.endpoints[-1],
                security=mirrorq.Security.load("keys", "load"),
                timeout=DEADLINE_S,
            )
        )
        self._jobs = self.client.queue("jobs", passive=True)

    def _listen(self, name: str) -> None:
        while line := line_of(self.processes[name]):
            self.done.append((name, line))

    def put(self, count: int) -> list[mirrorq.Confirmation]:
        return [self._jobs.put(b"more") for _ in range(count)]

    def check(self) -> bool:
        """The page's last command, at the nodes that run here."""
        found = re.search("^mirrorq (check .*) --connect", text_of("start.md"), re.MULTILINE)
        assert found
        line = [*found[1].split(), "--connect", ",".join(self.endpoints)]
        done = CliRunner().invoke(main, line)
        assert done.exit_code in (0, 1), done.output
        # It was let in, and answered: all is well, or that is what is not.
        assert done.stderr == "" or done.stderr.startswith("mirrorq: 3 nodes, "), done.stderr
        return done.exit_code == 0

    def until_done(self, puts: list[mirrorq.Confirmation]) -> set[str]:
        """All of these have been worked on: by whom."""
        lines = {f"done {put.result(DEADLINE_S)}" for put in puts}
        until(lambda: lines <= {line for _, line in list(self.done)})
        return {name for name, line in self.done if line in lines}


def test_three_hosts() -> None:
    """Jobs are done by those that are left when the host that published them dies."""
    with ExitStack() as ending:
        hosts = ThreeHosts(ending)
        until(lambda: hosts.done)
        until(hosts.check)
        hosts.processes["a"].kill()
        assert hosts.until_done(hosts.put(100)) <= {"b", "c"}


def test_three_hosts_go_on_after_two_were_away() -> None:
    """Two hosts are frozen until the third has noticed, with jobs under way on all of them: the
    program of each works on when they are back."""
    with ExitStack() as ending:
        hosts = ThreeHosts(ending)
        puts = hosts.put(200)
        for name in "ab":
            hosts.processes[name].send_signal(signal.SIGSTOP)
        until(lambda: hosts.client.is_paused)
        for name in "ab":
            hosts.processes[name].send_signal(signal.SIGCONT)
        hosts.until_done(puts + hosts.put(200))
        assert [host.poll() for host in hosts.processes.values()] == [None, None, None]


def stop_local() -> None:
    """As the page says."""
    done = CliRunner().invoke(main, ["local", "./shared", "--stop"])
    assert done.exit_code == 0, done.output


def test_deployment() -> None:
    """This machine's node; and one as a process of its own, beside this one and beside processes
    that it forks."""
    scripts_of("deployment.md")
    with ExitStack() as ending:
        assert line_of(start(ending, "local.py")) == "1"
        stop_local()
        spawned = start(ending, "spawned.py")
        assert line_of(spawned) == "1"
        assert spawned.wait(DEADLINE_S) == 0
        prefork = start(ending, "prefork.py")
        assert {line_of(prefork) for _ in range(3)} == {"ONE", "TWO", "THREE"}
        assert prefork.wait(DEADLINE_S) == 0


def test_a_worker() -> None:
    """Jobs are made, one ends as a dead letter, and SIGTERM ends the worker in good order."""
    scripts_of("worker.md")
    page = (DOCS / "worker.md").read_text("utf-8")
    found = re.search(r"tcp://[\d.:]+", Path("produce.py").read_text("utf-8"))
    command = re.search(r"^    mirrorq (worker .*)$", page, re.MULTILINE)
    assert found
    assert command
    with ExitStack() as ending:
        refused = start(ending, "refused.py")
        node = ending.enter_context(mirrorq.Node("a", path="data", listen=found[0]))
        assert start(ending, "produce.py").wait(DEADLINE_S) == 0
        arguments = re.sub(r"tcp://[\d.:]+", found[0], command[1]).split()
        worker = start(ending, "-m", "mirrorq", *arguments)
        # Two jobs at once: the end of one line may come after the other line's text.
        said = line_of(worker) + line_of(worker)
        assert ("made espresso" in said, "made tea" in said) == (True, True), said
        failed = start(ending, "failed.py")
        assert line_of(failed) == "broken delivery_limit"
        assert failed.wait(DEADLINE_S) == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(DEADLINE_S) == 0
        until(lambda: node.queue("jobs").qsize() == 0)
        until(lambda: node.queue("jobs").status().messages == 0)
        assert line_of(refused) == "AckRefused"
        assert refused.wait(DEADLINE_S) == 0


def serve(ending: ExitStack, application: str, *options: str) -> Callable[..., Any]:
    """Run uvicorn; return what asks it and reads its JSON."""
    port = free_ports(1)[0]
    server = start(ending, "-m", "uvicorn", application, "--port", str(port), *options)
    ending.callback(server.wait, DEADLINE_S)
    ending.callback(server.terminate)  # its workers end with it

    def ask(path: str, body: bytes | None = None) -> Any:
        end = time.monotonic() + DEADLINE_S
        while True:
            assert server.poll() is None, "uvicorn has ended"
            try:
                url = f"http://127.0.0.1:{port}{path}"
                with urllib.request.urlopen(url, body, timeout=DEADLINE_S) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError:
                raise
            except OSError:
                assert time.monotonic() < end, "uvicorn does not answer"
                time.sleep(0.05)

    return ask


def test_a_node_in_a_web_service() -> None:
    """The job is confirmed, and a worker of the same process does it."""
    scripts_of("asyncio.md")
    with ExitStack() as ending:
        ask = serve(ending, "service:app")
        assert ask("/jobs", b"tea") == {"sequence": 1}
        until(lambda: ask("/results") == ["TEA"])


class Replica:
    """One replica of fastapi.md's service: a process under uvicorn."""

    def __init__(self, ending: ExitStack, name: str) -> None:
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        command = [sys.executable, "-m", "uvicorn", "orders:app"]
        self.process = subprocess.Popen(
            [*command, "--port", self.url.rpartition(":")[2], "--log-level", "warning"],
            env={**os.environ, "NODE_NAME": name},
            start_new_session=True,
        )
        ending.callback(self.process.wait, DEADLINE_S)
        ending.callback(self.process.kill)

    def ask(self, path: str, body: bytes | None = None, key: str = "") -> tuple[int, Any]:
        """Status and answer; (0, None) while nobody listens."""
        headers = {"Idempotency-Key": key} if key else {}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    def until(self, path: str, status: int) -> Any:
        """Wait for an answer of this status; return it."""
        until(lambda: self.ask(path)[0] == status, lambda: (path, self.ask(path)))
        return self.ask(path)[1]


def test_fastapi_replicas() -> None:
    """Each order is done by one of three replicas, of which one dies, and then another: health says
    so, and a key that is sent again stores nothing."""
    pytest.importorskip("fastapi")
    scripts_of("fastapi.md")
    text = text_of("start.md")  # makes its keys
    for line in re.findall("^mirrorq key new (.*) --keys keys$", text, re.MULTILINE):
        keygen(*line.split())
    with ExitStack() as ending:
        replicas = {"a": Replica(ending, "a")}
        # Alone it listens, is alive, and takes nothing.
        assert replicas["a"].until("/livez", 200) == {"alive": True}
        assert replicas["a"].ask("/readyz")[0] == 503
        assert replicas["a"].ask("/orders", b"early") == (503, {"detail": "no majority yet"})
        replicas |= {name: Replica(ending, name) for name in "bc"}
        for replica in replicas.values():
            assert replica.until("/readyz", 200) == {"ready": True, "reason": ""}
        for name, replica in replicas.items():
            assert replica.ask("/orders", f"from {name}".encode())[0] == 200
        first = replicas["a"].ask("/orders", b"espresso", "order-17")
        again = replicas["b"].ask("/orders", b"espresso", "order-17")
        assert first[0] == again[0] == 200
        assert first[1]["sequence"] == again[1]["sequence"]
        assert replicas["a"].ask("/orders", bytes((16 << 20) + 1))[0] == 413

        def done() -> list[str]:
            running = [r for r in replicas.values() if r.process.poll() is None]
            return sorted(each for replica in running for each in replica.ask("/done")[1])

        wanted = ["espresso", "from a", "from b", "from c"]
        until(lambda: done() == wanted, done)
        replicas["a"].process.kill()
        replicas["a"].process.wait(DEADLINE_S)
        until(lambda: replicas["b"].ask("/orders", b"tea", "order-18")[0] == 200)
        replicas["c"].until("/readyz", 200)
        until(lambda: "tea" in done(), done)
        # A node that stops by itself, here because its directory is gone, is not alive.
        shutil.rmtree("data-b")
        assert replicas["b"].until("/livez", 503) == {"alive": False}
        # The last one stays alive, and says that it cannot take orders.
        replicas["b"].process.send_signal(signal.SIGTERM)
        assert replicas["b"].process.wait(DEADLINE_S) in (0, -signal.SIGTERM)
        replicas["c"].until("/readyz", 503)
        assert replicas["c"].ask("/livez")[0] == 200
        replicas["c"].process.send_signal(signal.SIGTERM)
        assert replicas["c"].process.wait(DEADLINE_S) in (0, -signal.SIGTERM)


def test_code_for_asyncio_queue() -> None:
    """Every number once, in whatever order the workers came to it."""
    scripts_of("asyncio.md")
    ran = subprocess.run(
        [sys.executable, "pipeline.py"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert sorted(map(int, ran.stdout.split())) == [number * number for number in range(10)]


def test_the_calls_of_asyncio() -> None:
    """One program against a node at the endpoint that it names."""
    scripts_of("asyncio.md")
    found = re.search(r"tcp://[\d.:]+", Path("calls.py").read_text("utf-8"))
    assert found
    with ExitStack() as ending, mirrorq.Node("a", path="a", listen=found[0]):
        process = start(ending, "calls.py")
        assert line_of(process) == "2"
        assert process.wait(DEADLINE_S) == 0


def test_a_spool_of_asyncio() -> None:
    """The put is accepted without a node, and confirmed when one is there."""
    scripts_of("asyncio.md")
    found = re.search(r"tcp://[\d.:]+", Path("spooling.py").read_text("utf-8"))
    assert found
    with ExitStack() as ending:
        process = start(ending, "spooling.py")
        until(lambda: Path("spool", "data.mdb").exists())
        with mirrorq.Node("a", path="a", listen=found[0]):
            assert line_of(process) == "1"


def test_a_web_service_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a client of one node."""
    scripts_of("asyncio.md")
    with mirrorq.Node("a", path="a", listen="tcp://127.0.0.1:0") as node, ExitStack() as ending:
        monkeypatch.setenv("MIRRORQ_URL", node.listening)
        ask = serve(ending, "web:app", "--workers", "2")
        answers = [ask("/jobs", b"tea") for _ in range(4)]
        assert [answer["sequence"] for answer in answers] == [1, 2, 3, 4]
        assert all(answer["pid"] != os.getpid() for answer in answers)


def test_gunicorn() -> None:
    """The page's configuration and application, with two workers."""
    scripts_of("deployment.md")
    found = re.search(r'bind = "(.*)"', Path("gunicorn.conf.py").read_text("utf-8"))
    assert found
    with ExitStack() as ending:
        master = start(ending, "-m", "gunicorn", "app:app", "--log-level", "warning")
        end = time.monotonic() + DEADLINE_S
        answers: list[bytes] = []
        while len(answers) < 3:
            try:
                with urllib.request.urlopen(f"http://{found[1]}/tea", timeout=DEADLINE_S) as page:
                    answers.append(page.read())
            except OSError:
                assert time.monotonic() < end, "gunicorn does not answer"
                time.sleep(0.05)
        master.send_signal(signal.SIGTERM)
        assert master.wait(DEADLINE_S) == 0
        assert answers == [b"1", b"2", b"3"]
        # It is closed: this process gets the store.
        with mirrorq.MirroredQueue("jobs", path="data", node="a") as jobs:
            assert jobs.qsize() == 3


def commands() -> list[str]:
    found: set[str] = set()
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        inside = False
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith("```"):
                inside = not inside
            match = COMMAND.match(line)
            if match and (inside or line.startswith("    ")):
                found.add(re.split(r"\s+#| \|| && ", match[1])[0])
    return sorted(found)


def not_understood(words: list[str]) -> list[str]:
    """The options of a command line, without `mirrorq`, that its command has not."""
    name, *words = words
    command = main.commands[name]
    if isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    known = {each for option in command.params for each in option.opts}
    options = [word.strip("[]").partition("=")[0] for word in words]
    return [word for word in options if word.startswith("--") and word not in known]


def test_every_command_line_is_understood() -> None:
    """Each names a command and options that there are. Nothing is run."""
    lines = commands()
    assert len(lines) > 20
    for line in lines:
        assert not_understood(line.split()) == [], line


def test_every_command_that_is_named_in_a_sentence_is_there() -> None:
    """In pages, and in the messages and docstrings of the library."""
    places = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "src").rglob("*.py")]
    named: set[tuple[str, str]] = set()
    for place in places:
        text = re.sub(r'"\n\s+f?"', "", place.read_text(encoding="utf-8"))
        named.update(re.findall(r"`mirrorq (?!needs)([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", text))
    assert len(named) > 25
    for noun, verb in sorted(named):
        command = main.commands[noun]
        if isinstance(command, click.Group) and verb:
            assert verb in command.commands, f"mirrorq {noun} {verb}"
