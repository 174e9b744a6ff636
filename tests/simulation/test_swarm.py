"""Whole clusters under random faults, on virtual time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import TESTS
from harness.__main__ import describe, main, run_seed
from harness.faults import Faults
from harness.results import Result, load
from harness.swarm import Swarm

PRINT_TRACE = "from harness.swarm import Swarm; print('\\n'.join(Swarm(7).run().trace))"


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 8))]
)
def test_nothing_is_lost_whatever_breaks(seed: int) -> None:
    """After faults, heal and drain every checker is content."""
    result = run_seed(seed, "test")
    assert not result.wrong, describe(result)


def test_a_checkpoint_is_made_after_a_state_that_was_coming_was_dropped() -> None:
    """Nothing else would have woken the copy for it."""
    assert run_seed(1310657, "test", with_rail=True).wrong == []


def test_a_handle_goes_whose_goodbye_was_dropped() -> None:
    """Its node had joined by a leader that was cut off, and the next leader did not know it yet."""
    assert run_seed(1330416, "test", with_rail=True).wrong == []


@pytest.mark.parametrize("seed", [2])
def test_several_queues_agree_whatever_breaks(seed: int) -> None:
    """Results that are put with an ack, and messages that reach two queues, in one run."""
    swarm = Swarm(seed, chain=True, fan=True)
    assert swarm.run().wrong == []
    assert swarm.chain is not None
    assert swarm.fan is not None
    assert len(swarm.fan.publishes) > 50
    assert len(swarm.chain.life.journal.attempts) > 50


def test_nothing_is_lost_of_messages_that_are_put_by_hundreds() -> None:
    """A short run whose puts are frames of hundreds and whose acks end parts of them."""
    swarm = Swarm(11, chain=False, fan=False, is_short=True, bulk=True)
    report = swarm.run()
    assert report.wrong == []
    assert report.tally.acknowledged > 10_000
    assert report.tally.deliveries > report.tally.ok
    assert report.faults


@pytest.mark.parametrize(("seed", "holders"), [(8, False), (36, False), (18, True)])
def test_no_ack_is_refused_that_took_effect(seed: int, holders: bool) -> None:
    """Clients whose entry nodes are killed, or that leave them, with acks on the way and leases."""
    report = Swarm(seed, clients=True, holders=holders, is_short=True).run()
    assert report.wrong == []
    assert report.faults["client"] > 2


@pytest.mark.real
@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    """A failing seed can be replayed: one trace in each process, whatever its hashes are."""
    traces = [
        subprocess.run(
            [sys.executable, "-c", PRINT_TRACE],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TESTS)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert len(traces[0].splitlines()) > 30
    assert traces[0] == traces[1]


def test_a_run_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds that stand in the file for this code are not run again; a half line is no result; a
    failure is told with its replay, and the exit status says so, also when it is an old one."""
    file = tmp_path / "results"
    base = ["--jobs", "1", "--results", str(file), "--code", "abc"]
    ran: list[int] = []

    def fake(seed: int, version: str, **_: bool) -> Result:
        ran.append(seed)
        wrong = ["lost: b'p/1'"] if seed == 2 else []
        return Result(seed, version, 3, 1, 1000, 10, 5, 6, {"attempts": 5}, {"kill": 1}, wrong)

    monkeypatch.setattr("harness.__main__.run_seed", fake)
    assert main(["--seeds", "0-1", *base]) == 0
    file.write_bytes(file.read_bytes() + b'{"seed":2,')
    assert main(["--seeds", "4", *base]) == 1
    assert ran == [0, 1, 2, 3]
    assert "--seeds 2, --trace" in capsys.readouterr().out
    assert main(["--seeds", "4", *base]) == 1
    assert main(["--summary", *base]) == 1
    assert ran == [0, 1, 2, 3]
    assert "4 seeds" in capsys.readouterr().out
    assert sorted(load(file, "abc")) == [0, 1, 2, 3]
    assert load(file, "other") == {}


def test_a_seed_that_raises_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Swarm) -> None:
        raise RuntimeError("an assertion of the core")

    monkeypatch.setattr(Swarm, "run", broken)
    assert run_seed(1, "abc").wrong == ["RuntimeError: an assertion of the core"]


def test_a_cluster_that_does_not_get_on_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After heal one node stays away: the queue is not in sync everywhere within the bound."""

    def end(self: Faults) -> None:
        self.cluster.heal_all()
        self.cluster.start(*list(self.cluster.nodes)[1:])
        self.cluster.kill(next(iter(self.cluster.nodes)))
        self.cluster.run(3000)

    monkeypatch.setattr(Faults, "end", end)
    monkeypatch.setattr("harness.swarm.DRAIN_MS", 3000)
    assert run_seed(0, "abc").wrong[0].startswith("no progress")


def test_rails_are_counted_where_a_run_is_made_to_have_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--rail` puts star and rail into each run, and the summary says what rails did."""
    assert main(["--seeds", "233,", "--jobs", "1", "--rail"]) == 0
    told = capsys.readouterr().out
    assert "rails: armed" in told
    assert "rails: handed over: taken" in told
