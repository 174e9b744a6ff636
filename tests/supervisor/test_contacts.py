"""Where a node looks for others, when what it was told and what they say differ."""

from __future__ import annotations

from mirrorq.contacts import Contacts

OLD, NEW, PROXY = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"


def taken(contacts: Contacts) -> list[tuple[str, str]]:
    connects, contacts.connects = contacts.connects, []
    return connects


def test_a_named_node_is_reached_where_the_configuration_says() -> None:
    """What it says of itself may be another address of the same place, as behind a proxy."""
    contacts = Contacts("a", "", {"c": PROXY}, ())
    assert taken(contacts) == [("c", PROXY)]
    assert contacts.learn("c", OLD)
    assert contacts.list_nodes({"c": OLD}) == ()
    assert taken(contacts) == []


def test_a_named_node_that_has_moved_is_followed() -> None:
    """It said one endpoint and says another now; the catalog knows of it a moment later, and
    other changes of the catalog in between lead nowhere back."""
    contacts = Contacts("a", "", {"b": OLD, "c": PROXY}, ())
    contacts.list_nodes({"c": OLD})
    taken(contacts)
    assert contacts.learn("c", NEW)
    assert taken(contacts) == [("c", NEW)]
    contacts.list_nodes({"b": OLD, "c": OLD})
    contacts.list_nodes({"b": OLD, "c": NEW})
    contacts.learn("c", NEW)
    assert taken(contacts) == []


def test_a_configuration_that_knew_of_the_move_before() -> None:
    contacts = Contacts("a", "", {"c": NEW}, ())
    contacts.list_nodes({"c": OLD})
    contacts.learn("c", NEW)
    contacts.list_nodes({"c": NEW})
    assert taken(contacts) == [("c", NEW)]


def test_a_node_of_the_catalog_only_is_followed_too() -> None:
    contacts = Contacts("a", "", {}, ())
    contacts.list_nodes({"c": OLD})
    contacts.learn("c", NEW)
    contacts.list_nodes({"c": OLD, "d": OLD})
    assert taken(contacts) == [("c", OLD), ("c", NEW), ("d", OLD)]
    assert contacts.list_nodes({"d": OLD}) == ("c",)
    assert contacts.disconnects == ["c"]
