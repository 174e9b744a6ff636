"""The catalog's bounds, and its image in pages."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from mirrorq.cluster.catalog import image, size
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.image import PAGE_BYTES
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import (
    Bind,
    CatalogCommand,
    ChangeView,
    ClearPolicy,
    DeclareExchange,
    DeclareQueue,
    DeclareShards,
    DeleteExchange,
    DeleteQueue,
    SetPolicy,
    Unbind,
)
from mirrorq.protocol.identities import MemberId
from mirrorq.protocol.views import Member

A, B = MemberId("a", 5, 1), MemberId("b", 6, 1)


def declare(name: str, arguments: str = "") -> DeclareQueue:
    return DeclareQueue(name, True, False, False, "a", None, (A, B), arguments)


def policy(name: str, pattern: str = "^x$") -> SetPolicy:
    return SetPolicy(name, msgspec.json.encode([pattern, {"max-length": 7}, 0, "queues"]).decode())


class Life:
    """A catalog and the commands that it has applied."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self._index = 0

    def apply(self, *commands: CatalogCommand) -> str:
        """Return the text of the last refusal."""
        text = ""
        for command in commands:
            self._index += 1
            text = self.catalog.apply(self._index, command).text
        return text


def some_of_all() -> Iterator[CatalogCommand]:
    yield from (declare(f"q{number}") for number in range(5))
    yield DeclareShards("s", 3, True, "a", ((A,), (A, B), (B,)))
    yield from (DeclareExchange(f"x{number}", "topic") for number in range(3))
    yield from (Bind("x1", f"q{number % 5}", f"key-{number}", "") for number in range(100))
    yield from (policy(f"p{number}") for number in range(3))
    yield ChangeView(1, 1, (Member(A, True),))


def counts_of(catalog: Catalog) -> list[size.Count]:
    found = catalog.size
    return [found.queues, found.exchanges, found.bindings, found.policies]


def test_what_is_counted_is_what_is_there() -> None:
    """As a catalog does that is read back; and nothing is left when all is deleted."""
    life = Life()
    life.apply(*some_of_all())
    catalog = life.catalog
    assert [count.records for count in counts_of(catalog)] == [8, 3, 100, 3]
    assert counts_of(Catalog.restore(catalog.snapshot())) == counts_of(catalog)
    life.apply(Unbind("x1", "q2", "key-2", ""), policy("p1", "^another$"), DeleteQueue(4))
    assert [count.records for count in counts_of(catalog)] == [7, 3, 79, 3]
    assert counts_of(Catalog.restore(catalog.snapshot())) == counts_of(catalog)
    for queue in (*catalog.sharded_queues(), *catalog.queues()):
        life.apply(DeleteQueue(queue.id))
    assert counts_of(catalog)[2] == size.Count()
    life.apply(
        *(DeleteExchange(f"x{n}") for n in range(3)), *(ClearPolicy(f"p{n}") for n in range(3))
    )
    assert counts_of(catalog) == [size.Count()] * 4


@pytest.mark.parametrize(
    ("bound", "most", "last", "again"),
    [
        ("queues", 8, declare("more"), declare("q1")),
        (
            "queues",
            9,
            DeclareShards("t", 2, True, "a", ((A,), (A,))),
            DeclareShards("s", 3, True, "a", ((A,), (A, B), (B,))),
        ),
        ("exchanges", 3, DeclareExchange("more", "topic"), DeclareExchange("x1", "topic")),
        ("bindings", 100, Bind("x2", "q1", "k", ""), Bind("x1", "q1", "key-1", "")),
        ("policies", 3, policy("more"), policy("p1", "^another$")),
        ("bytes", 2000, declare("more"), declare("q1")),
    ],
)
def test_beyond_a_bound_nothing_more_is_taken(
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
    last: CatalogCommand,
    again: CatalogCommand,
) -> None:
    """The refusal says how much there is, how much there may be, and what to do. A declaration of
    something that is there adds nothing, and views change on."""
    life = Life()
    life.apply(*some_of_all())
    if bound == "bytes":
        monkeypatch.setattr(size, "BYTES_MAX", most)
    else:
        monkeypatch.setitem(size.RECORDS_MAX, bound, most)
    before = life.catalog.size.records
    text = life.apply(last)
    assert str(most) in text
    assert ", or " in text or "delete some" in text
    assert life.catalog.size.records == before
    assert life.apply(again) == ""
    assert life.apply(ChangeView(2, 1, (Member(A, True),))) == ""


def test_pages_have_a_bounded_size_and_make_the_whole() -> None:
    """A queue of many shards, an exchange of many bindings and long names, too."""
    life = Life()
    life.apply(*some_of_all())
    life.apply(*(declare(f"{number:0>250}") for number in range(500)))
    life.apply(*(Bind("x0", "q1", f"{number:0>250}", "") for number in range(500)))
    pages = life.catalog.snapshot()
    assert len(pages) > 3
    assert max(map(len, pages)) < PAGE_BYTES + 32 * 1024
    again = Catalog.restore(pages)
    assert again.snapshot() == pages
    assert again.exchanges() == life.catalog.exchanges()
    assert again.apply(2000, DeleteQueue(1)) == life.catalog.apply(2000, DeleteQueue(1))
    assert again.snapshot() == life.catalog.snapshot()


def test_pages_are_of_the_moment_in_which_they_were_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is applied between two of them is in none."""
    monkeypatch.setattr(image, "PAGE_BYTES", 200)
    life = Life()
    life.apply(*some_of_all())
    before = life.catalog.snapshot()
    begun = life.catalog.pages()
    made = [next(begun)[0]]
    life.apply(declare("later"), DeleteQueue(2), Bind("x2", "q1", "late", ""), policy("p9"))
    life.apply(ChangeView(1, 2, (Member(B, True),)), DeleteExchange("x0"))
    made += [page for page, _ in begun]
    assert tuple(made) == before
    assert life.catalog.snapshot() != before


def test_pages_that_do_not_follow_each_other_are_no_catalog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One left out, one twice, one of another snapshot, none at the end."""
    monkeypatch.setattr(image, "PAGE_BYTES", 200)
    life = Life()
    life.apply(*some_of_all())
    pages = life.catalog.snapshot()
    life.apply(declare("later"))
    others = life.catalog.snapshot()
    for wrong in (
        pages[1:],
        (pages[0], *pages[2:]),
        (pages[0], *pages),
        (pages[0], *others[1:]),
        pages[:-1],
        (),
    ):
        with pytest.raises(ProtocolError, match=r"does not follow|too early"):
            Catalog.restore(wrong)
