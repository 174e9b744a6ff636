"""Where a node looks for others, when what it was told and what they say differ."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from mirrorq.engine.addresses import Addresses
from mirrorq.protocol.control import Unwelcome

OLD, NEW, PROXY = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"
AWAY = Unwelcome("go away")


def wanted(contacts: Addresses) -> dict[str, str] | None:
    """What has changed since the last time; None: nothing."""
    return contacts.take_change()


def test_a_named_node_is_reached_where_the_configuration_says() -> None:
    """What it says of itself may be another address of the same place, as behind a proxy."""
    contacts = Addresses("a", "", {"c": PROXY}, ())
    assert wanted(contacts) == {"c": PROXY}
    assert contacts.learn("c", OLD)
    assert contacts.update_nodes({"c": OLD}) == ()
    assert wanted(contacts) is None


def test_a_named_node_that_has_moved_is_followed() -> None:
    """It said one endpoint and says another now; the catalog knows of it a moment later, and
    other changes of the catalog in between lead nowhere back."""
    contacts = Addresses("a", "", {"b": OLD, "c": PROXY}, ())
    contacts.update_nodes({"c": OLD})
    wanted(contacts)
    assert contacts.learn("c", NEW)
    assert wanted(contacts) == {"b": OLD, "c": NEW}
    contacts.update_nodes({"b": OLD, "c": OLD})
    contacts.update_nodes({"b": OLD, "c": NEW})
    contacts.learn("c", NEW)
    assert contacts.wanted() == {"b": OLD, "c": NEW}


def test_a_configuration_that_knew_of_the_move_before() -> None:
    """The catalog's older word does not lead away from it."""
    contacts = Addresses("a", "", {"c": NEW}, ())
    contacts.update_nodes({"c": OLD})
    contacts.learn("c", NEW)
    contacts.update_nodes({"c": NEW})
    assert wanted(contacts) == {"c": NEW}


def test_a_node_of_the_catalog_only_is_followed_too() -> None:
    """Where the catalog says, until it is in it no more."""
    contacts = Addresses("a", "", {}, ())
    contacts.update_nodes({"c": OLD})
    assert wanted(contacts) == {"c": OLD}
    contacts.learn("c", NEW)
    contacts.update_nodes({"c": OLD, "d": OLD})
    assert wanted(contacts) == {"c": NEW, "d": OLD}
    assert contacts.update_nodes({"d": OLD}) == ("c",)
    assert wanted(contacts) == {"d": OLD}


def test_a_stranger_that_is_left_and_told_again_in_one_step_is_wanted() -> None:
    """And seeds are, until this node has joined."""
    contacts = Addresses("z", "", {}, (OLD,))
    assert contacts.tell(0, NEW, AWAY) == "?" + NEW
    contacts.end_silent(1)
    assert contacts.tell(1, NEW, AWAY) == "?" + NEW
    assert wanted(contacts) == {"?" + OLD: OLD, "?" + NEW: NEW}
    contacts.end_seeds()
    contacts.end_silent(2)
    assert wanted(contacts) == {}


class Change(NamedTuple):
    """One thing that a node hears of others."""

    kind: str
    name: str
    endpoint: str


CHANGES = st.builds(
    Change,
    st.sampled_from(("learn", "list", "unlist", "forget", "tell", "end_silent", "end_seeds")),
    st.sampled_from("abc"),
    st.sampled_from((OLD, NEW, PROXY)),
)


@given(st.lists(CHANGES), st.lists(st.integers(1, 3)))
def test_steps_of_any_length_come_to_the_same(changes: list[Change], lengths: list[int]) -> None:
    """Whether the driver is told after each change, or of many at once, it ends with the same
    connections: just those that are wanted."""
    contacts = Addresses("z", "", {"a": OLD}, (PROXY,))
    listed: dict[str, str] = {}
    connections: dict[str, str] = {}
    left = list(lengths)
    due = 0
    for now_ms, change in enumerate(changes):
        match change.kind:
            case "learn":
                contacts.learn(change.name, change.endpoint)
            case "list" | "unlist":
                listed.pop(change.name, None)
                if change.kind == "list":
                    listed[change.name] = change.endpoint
                contacts.update_nodes(listed)
            case "forget" if not contacts.is_needed(change.name):
                contacts.forget(change.name)
            case "tell":
                contacts.tell(now_ms, change.endpoint, AWAY)
            case "end_silent":
                contacts.end_silent(now_ms)
            case "end_seeds":
                contacts.end_seeds()
            case _:
                pass
        due -= 1
        if due <= 0:
            due = left.pop() if left else 1
            told = contacts.take_change()
            connections = connections if told is None else told
    last = contacts.take_change()
    connections = connections if last is None else last
    assert connections == contacts.wanted()
    assert "a" in connections
    assert all(name in connections for name in listed)
