"""Run tests again and again on a bad machine, and count how often each passes.

    python -m harness.flakes --runs 50 tests/processes/test_failover.py
    python -m harness.flakes --runs 20 -- -m smoke

All runs share one core with busy loops and a loop that flushes a file: `taskset -c 1` before the
command chooses another core than the first. The tests come in another order in each run. Exit
status 1 when any test has failed once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from xml.etree import ElementTree

from harness import TESTS

BUSY = "while True: pass"
FLUSHING = """
import os, tempfile
with tempfile.NamedTemporaryFile() as file:
    while True:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
        file.truncate(0)
"""


@contextmanager
def beside(code: str) -> Iterator[None]:
    """Run Python code in a process of its own meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def outcomes(report: Path) -> Iterator[tuple[str, bool]]:
    """Names of the tests of one run that were not skipped, and whether each passed."""
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {part.tag for part in case}
        if "skipped" not in kinds:
            name = f"{case.get('classname')}.{case.get('name')}"
            yield name, not kinds & {"failure", "error"}


def run_once(number: int, arguments: list[str], log: Path) -> dict[str, bool]:
    """One run in the order of this number; its output is kept where a test fails."""
    report = log / f"{number}.xml"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["-p", "randomly", f"--randomly-seed={number}", *arguments]
    with (log / f"{number}.txt").open("wb") as output:
        subprocess.run(command, cwd=TESTS.parent, stdout=output, stderr=output, check=False)
    return dict(outcomes(report)) if report.exists() else {f"run {number} did not end": False}


def main() -> int:
    """Print a line for each run, then a line for each test that has failed."""
    parser = argparse.ArgumentParser(prog="python -m harness.flakes", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first", type=int, default=0, help="number of the first run's order")
    parser.add_argument("--busy", type=int, default=2 * (os.cpu_count() or 1), help="busy loops")
    parser.add_argument("arguments", nargs="*", help="of pytest; options behind --")
    options = parser.parse_args()
    # The loops end with this process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    log = Path(tempfile.mkdtemp(prefix="flakes-"))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    passed: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with ExitStack() as load:
        for code in (*[BUSY] * options.busy, FLUSHING):
            load.enter_context(beside(code))
        for number in range(options.first, options.first + options.runs):
            found = run_once(number, options.arguments, log)
            for name, is_well in found.items():
                (passed if is_well else failed)[name] += 1
            wrong = [name for name, is_well in found.items() if not is_well]
            print(f"run {number}: {len(found) - len(wrong)} passed, failed: {wrong}", flush=True)
    for name, count in failed.most_common():
        print(f"{name}: passed {passed[name]} of {passed[name] + count}")
    print(f"{len(passed.keys() | failed.keys())} tests, {len(failed)} failed at least once: {log}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
