"""One test, many seeds: the error names the failing seed, and how to repeat the run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

from mirrorq.config import Config
from mirrorq.testing.cluster import SimulatedCluster, check_runs

SEED_VARIABLE = "MIRRORQ_SEED"
"""Set to a number, the variable limits tests to this seed."""
LINES_SHOWN = 30
"""Limit of shown log lines of a failed run."""

Test = TypeVar("Test", bound=Callable[..., object])


def simulate(
    seeds: int | Iterable[int] = 20,
    *,
    nodes: int | Sequence[str] = 3,
    config: Config | None = None,
    witnesses: Sequence[str] = (),
    time_limit: float = 600.0,
    patch: bool = True,
) -> Callable[[Test], Test]:
    """Run a test once for each seed, each time with a fresh `SimulatedCluster`.

        @simulate(seeds=100)
        def test_no_order_is_lost(cluster): ...

    The test is called with the cluster as its argument `cluster`; the caller, such as pytest, gives
    other arguments. The first failing seed ends the test. The error names the seed, the last events
    in the cluster, and how to repeat the run: `MIRRORQ_SEED=17 pytest …` runs this seed only.

    Args:
        seeds: how many, from 0; or which.
        nodes: and the rest: as of `SimulatedCluster`.

    Raises:
        TypeError: the test is an async def or a generator.
    """
    chosen = range(seeds) if isinstance(seeds, int) else tuple(seeds)

    def decorate(test: Test) -> Test:
        check_runs("the test", test)

        @wraps(test)
        def run(*arguments: Any, **keywords: Any) -> None:
            for seed in _only(chosen):
                cluster = SimulatedCluster(
                    nodes,
                    seed=seed,
                    config=config,
                    witnesses=witnesses,
                    time_limit=time_limit,
                    patch=patch,
                )
                try:
                    with cluster:
                        test(*arguments, cluster=cluster, **keywords)
                except BaseException as error:
                    error.add_note(_told(seed, cluster))
                    raise

        # pytest must not look for a fixture of this name.
        given = inspect.signature(test)
        rest = [one for name, one in given.parameters.items() if name != "cluster"]
        run.__signature__ = given.replace(parameters=rest)  # type: ignore[attr-defined]
        return cast("Test", run)

    return decorate


def _only(seeds: Iterable[int]) -> Iterable[int]:
    wanted = os.environ.get(SEED_VARIABLE)
    return seeds if wanted is None else (int(wanted),)


def _told(seed: int, cluster: SimulatedCluster) -> str:
    last = "\n".join(cluster.log[-LINES_SHOWN:])
    return (
        f"seed {seed}, after {cluster.now:.3f} virtual seconds. To run it again: "
        f"{SEED_VARIABLE}={seed}. The last of what happened in the cluster:\n{last}"
    )
