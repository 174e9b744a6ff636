"""Each test of these runs once for each face that has the calls it needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.faces import FACES, Case, Face, Stage


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers("parametrize")
    if "face" in metafunc.fixturenames and not any("face" in mark.args[0] for mark in marks):
        case = getattr(metafunc.function, "case", Case())
        faces = [face for face in FACES if case.calls <= face.calls]
        metafunc.parametrize("face", faces, ids=[face.name for face in faces])


@pytest.fixture
def stage(face: type[Face], request: pytest.FixtureRequest) -> Iterator[Stage]:
    case = getattr(request.function, "case", Case())
    with Stage(face, nodes=case.nodes, config=case.config) as made:
        yield made
