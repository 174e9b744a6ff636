"""Each test of these runs once for each face that has the calls it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.faces import FACES, Case, Face, Stage


def case_of(test: Callable[..., None]) -> Case:
    """What a test needs, as it says itself or its module says for all."""
    found: Case = getattr(test, "case", test.__globals__.get("CASE", Case()))
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    case = case_of(metafunc.function)
    marks = metafunc.definition.iter_markers("parametrize")
    if "face" in metafunc.fixturenames and not any("face" in mark.args[0] for mark in marks):
        faces = [face for face in FACES if case.calls <= face.calls]
        metafunc.parametrize("face", faces, ids=[face.name for face in faces])


@pytest.fixture
def stage(face: type[Face], request: pytest.FixtureRequest) -> Iterator[Stage]:
    case = case_of(request.function)
    with Stage(face, nodes=case.nodes, config=case.config) as made:
        yield made


@pytest.fixture
def queue(stage: Stage) -> Any:
    """A handle on the queue "orders"."""
    return stage.queue()
