"""Hypothesis strategies of frames, as the reference codec's fields."""

from __future__ import annotations

from hypothesis import strategies as st
from reference import FLAG_PROPERTIES, FLAG_TERMS, NUMBER_MAX, PUBLISH, Fields

COUNT_MAX = 40

numbers = st.integers(0, NUMBER_MAX - COUNT_MAX)
times = st.integers(-(2**63), 2**63 - 1)
plain_flags = st.integers(0, 2**16 - 1).map(lambda flags: flags & ~(FLAG_PROPERTIES | FLAG_TERMS))
terms = st.none() | st.tuples(numbers, numbers).filter(any)
values = st.lists(st.binary(max_size=40), min_size=1, max_size=COUNT_MAX).map(tuple)


@st.composite
def publishes(draw: st.DrawFn) -> Fields:
    """Publish frames, with and without properties, stamped or not."""
    bodies = draw(values)
    properties = draw(
        st.none() | st.tuples(*[st.binary(max_size=20)] * len(bodies)), label="properties"
    )
    said = draw(terms, label="terms")
    flags = 0 if properties is None else FLAG_PROPERTIES
    return Fields(
        bodies,
        flags=draw(plain_flags) | flags | (0 if said is None else FLAG_TERMS),
        queue_id=draw(numbers),
        epoch=draw(numbers),
        lsn=draw(numbers),
        first_sequence=draw(numbers),
        count=len(bodies),
        producer=draw(numbers),
        first_number=draw(numbers),
        settled=draw(numbers),
        timestamp_us=draw(times),
        properties=properties,
        terms=said,
    )


@st.composite
def ops(draw: st.DrawFn) -> Fields:
    """Frames of all other kinds, those of versions to come too."""
    return Fields(
        (draw(st.binary(max_size=60)),),
        kind=draw(st.integers(0, 255).filter(lambda kind: kind != PUBLISH)),
        flags=draw(plain_flags),
        queue_id=draw(numbers),
        epoch=draw(numbers),
        lsn=draw(numbers),
        count=draw(st.integers(1, COUNT_MAX)),
        producer=draw(numbers),
        first_number=draw(numbers),
        settled=draw(numbers),
        timestamp_us=draw(times),
    )


anything = publishes() | ops()
