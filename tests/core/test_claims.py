"""Whose a producer id is, and who is told of it."""

from __future__ import annotations

from mirrorq.replication.master.attachments import Claims


def test_an_id_is_its_openers() -> None:
    """Whoever was quicker to name it, and until it expires."""
    claims = Claims()
    assert claims.admits(7, "thief")
    claims.open(7, "owner")
    assert claims.admits(7, "owner")
    assert not claims.admits(7, "thief")
    assert not claims.admits(7, "")
    claims.forget(7)
    assert claims.admits(7, "thief")


def test_an_id_of_a_former_term_is_whose_name_comes_first() -> None:
    """The others are refused, so nobody's numbers are used up by somebody else unseen."""
    claims = Claims()
    assert claims.admits(7, "first")
    assert not claims.admits(7, "second")
    assert claims.admits(7, "first")
    assert claims.admits(8, "second")


def test_without_keys_all_are_one_owner() -> None:
    claims = Claims()
    claims.open(7, "")
    assert claims.admits(7, "")
