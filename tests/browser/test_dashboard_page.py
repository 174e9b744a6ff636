"""The dashboard in a real browser: what it shows, a failover while it is open, a phone, the dark,
names that are markup, and what an admin may do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kit import DEADLINE_S, peers_of

from mirrorq import Config, Node
from mirrorq.dashboard import Dashboard
from mirrorq.monitoring.alarms import ADVICE

from .chromium import BROWSER, DRIVER, Chromium

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="apt-get install chromium chromium-driver"
)
PATIENT = Config(failure_ms=5000, lag_ms_max=10_000)
"""Three nodes in one process beside a browser: none is dead because the machine is busy."""
ADMIN_KEY = "a key that nobody guesses"
MARKUP = "<img src=x onerror=\"document.title='broken into'\">"
LONG = {
    "ha-mode": "nodes",
    "ha-params": ["paris", "london", "tokyo"],
    "dead-letter-queue": "a-queue-for-what-nobody-could-do-anything-with",
    "message-ttl": 86_400_000,
    "overflow": "reject-publish",
}
"""A policy's definition."""
PICTURES = os.environ.get("MIRRORQ_PICTURES")
"""A directory for pictures of the page, to be looked at."""


class World:
    """Three nodes, their dashboard and a browser that has it open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.peers = peers_of(("paris", "london", "tokyo"))
        self.nodes = {name: self.start(name) for name in self.peers}

    def start(self, name: str) -> Node:
        return Node(name, path=self.path / name, peers=self.peers, config=PATIENT)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("cluster"))
    try:
        world.nodes["paris"].wait_ready(DEADLINE_S)
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def dashboard(world: World) -> Iterator[Dashboard]:
    with Dashboard(world.nodes["london"], "127.0.0.1:0", admin_key=ADMIN_KEY) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory, dashboard: Dashboard) -> Iterator[Chromium]:
    # A proxy that the environment names must not be asked for a page of this machine.
    before = os.environ.get("http_proxy")
    os.environ["http_proxy"] = "http://127.0.0.1:9"
    browser = Chromium(tmp_path_factory.mktemp("browser") / "profile")
    try:
        browser.open(dashboard.url)
        yield browser
    finally:
        browser.close()
        if before is None:
            del os.environ["http_proxy"]
        else:
            os.environ["http_proxy"] = before


def card(name: str) -> str:
    """The card of a queue, in the page's language."""
    title = "c.querySelector('h3').textContent"
    return f"[...document.querySelectorAll('.card')].find(c => {title} === {name!r})"


def shoot(browser: Chromium, name: str) -> None:
    if PICTURES:
        browser.shoot(Path(PICTURES) / f"{name}.png")


def test_rings_rates_and_policies(world: World, browser: Chromium) -> None:
    """A queue's ring has its master and mirrors in order, its plots have lines, its policy is
    listed; nothing is asked of anybody else, and the browser has no complaint."""
    paris = world.nodes["paris"]
    paris.set_policy("two", "^invoices$", {"ha-mode": "exactly", "ha-params": 2})
    orders = paris.queue("orders", timeout=DEADLINE_S)
    paris.queue("invoices", timeout=DEADLINE_S).close()
    orders.put_many([b"x" * 100] * 500).result(DEADLINE_S)
    found = card("orders")
    browser.until(f"{found} && {found}.querySelector('.depth').textContent === '500'")
    ring = f"[...{found}.querySelectorAll('.ring g')].map(g => g.getAttribute('class')).join()"
    browser.until(f"{ring} === 'master,sync,sync'")
    master = f"{found}.querySelector('.ring .master text').textContent"
    browser.until(f"{master} === 'paris'")
    assert orders.status().master == "paris"
    browser.until(f"{found}.querySelector('path.ready').getAttribute('d').includes('L')")
    invoices = card("invoices")
    browser.until(f"{invoices}.querySelectorAll('.ring g').length === 2")
    browser.until("document.getElementById('policies').textContent.includes('\"ha-params\":2')")
    orders.put_many([b"x"] * 500).result(DEADLINE_S)
    browser.until(f"{found}.querySelector('.depth').textContent === '1000'")
    asked = browser.run(
        "return performance.getEntriesByType('resource').map(e => new URL(e.name).host)"
    )
    assert set(asked) == {browser.run("return location.host")}
    assert browser.complaints() == []
    shoot(browser, "desktop")
    orders.close()


def test_a_phone_and_the_dark(world: World, browser: Chromium) -> None:
    """Nothing is wider than 390 pixels, what is to be touched is large enough, and both colour
    schemes differ."""
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    try:
        browser.resize(390, 844)
        browser.until("window.innerWidth === 390")
        assert browser.run("return document.documentElement.scrollWidth") <= 390
        # Nothing of a policy is cut, and nothing has to be moved to be read.
        london = world.nodes["london"]
        london.set_policy("long", "^a-queue-with-quite-a-long-name-.*$", LONG)
        cells = "[...document.querySelectorAll('#policies td')]"
        browser.until(f"{cells}.some(c => c.textContent.includes('dead-letter-queue'))")
        cut = (
            f"return {cells}.filter(c => c.scrollWidth > c.clientWidth + 1 || "
            "c.getBoundingClientRect().right > 390).map(c => c.textContent)"
        )
        assert browser.run(cut) == []
        scroll = "document.getElementById('policies').parentElement"
        assert browser.run(f"return {scroll}.scrollWidth <= {scroll}.clientWidth")
        browser.run("document.getElementById('policies').scrollIntoView()")
        shoot(browser, "phone-policies")
        small = browser.run(
            "return [...document.querySelectorAll('button, input, select')]"
            ".filter(e => e.offsetParent && e.offsetHeight < 34).map(e => e.outerHTML)"
        )
        assert small == []
        shoot(browser, "phone")
        browser.resize(390, 844, dark=True)
        browser.until(f"getComputedStyle(document.body).backgroundColor !== {light!r}")
        shoot(browser, "phone-dark")
    finally:
        browser.resize(1360)
        world.nodes["london"].clear_policy("long")


def test_names_are_text(world: World, browser: Chromium) -> None:
    """A queue, a policy and a pattern that are markup: shown as they are written, run by nobody."""
    london = world.nodes["london"]
    london.set_policy("<b>bold</b>", MARKUP.replace("(", "").replace(")", ""), {"max-length": 9})
    london.queue(MARKUP, timeout=DEADLINE_S).close()
    try:
        browser.until(
            f"[...document.querySelectorAll('h3')].some(h => h.textContent === {MARKUP!r})"
        )
        browser.until("document.getElementById('policies').textContent.includes('<b>bold</b>')")
        assert browser.run("return document.querySelectorAll('main img, main b b').length") == 0
        assert browser.run("return document.title") == "mirrorq"
    finally:
        london.clear_policy("<b>bold</b>")
        london.queue(MARKUP).delete()
    browser.until(f"![...document.querySelectorAll('h3')].some(h => h.textContent === {MARKUP!r})")


def test_an_alarm_is_shown_with_what_to_do(
    world: World, browser: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another node than the one that serves the page."""
    tokyo = world.nodes["tokyo"]._driver
    browser.until("document.getElementById('alarms')")
    # One that a busy machine raises meanwhile would take its place.
    monkeypatch.setattr(tokyo.watch, "look", lambda _: None)
    tokyo.call(lambda: setattr(tokyo.engine, "alarms", ("disk_low",)))
    shown = "document.getElementById('alarms').textContent"
    browser.until(f"{shown}.includes('disk_low on tokyo: {ADVICE['disk_low']}')")
    tokyo.call(lambda: setattr(tokyo.engine, "alarms", ()))
    browser.until(f"!{shown}.includes('disk_low')")


def test_an_admin_moves_a_master(world: World, browser: Chromium) -> None:
    """Without the key there is no button; a wrong key opens nothing; with the key the master
    moves, and the ring and the failovers say so."""
    assert browser.run("return document.querySelectorAll('.acts button').length") == 0

    def unlock(key: str) -> None:
        browser.run("document.getElementById('unlock').hidden = false")
        browser.run(
            f"document.getElementById('key').value = {key!r};"
            "document.getElementById('unlock').requestSubmit()"
        )

    unlock("wrong")
    browser.until("document.getElementById('said').textContent.startsWith('This is not')")
    assert browser.run("return document.querySelectorAll('.acts button').length") == 0
    unlock(ADMIN_KEY)
    found = card("orders")
    button = f"[...{found}.querySelectorAll('button')].find(b => b.textContent.startsWith('Move'))"
    browser.until(button)
    shoot(browser, "admin")
    browser.run(f"{found}.querySelector('select').value = 'london'; {button}.click()")
    browser.until(f"{found}.querySelector('.ring .master text').textContent === 'london'")
    browser.until("document.getElementById('changes').textContent.includes('paris → london')")


def test_an_admin_looks_at_a_dead_letter_and_deletes_it(world: World, browser: Chromium) -> None:
    """Each act is asked about, with the queue's name; a cancel changes nothing."""
    with world.nodes["paris"].queue("dead", timeout=DEADLINE_S) as dead:
        headers = {"x-death-queue": "orders", "x-death-reason": "rejected", "tries": 3}
        dead.put(b"<b>bad</b>", headers=headers, message_id="m1").result(DEADLINE_S)
        found = card("dead")
        browser.until(found)

        def click(text: str) -> None:
            button = (
                f"[...{found}.querySelectorAll('button')].find(b => b.textContent === '{text}')"
            )
            browser.until(button)
            browser.run(f"{button}.click()")

        def answer(button: str, words: str) -> None:
            browser.until(f"document.getElementById('sure-text').textContent.includes({words!r})")
            browser.run(f"document.getElementById('{button}').click()")

        click("Messages")
        rows = "document.getElementById('message-rows').textContent"
        browser.until(f"{rows}.includes('in orders by rejected')")
        for shown in ("<b>bad</b>", "id m1", "tries: 3"):
            assert shown in browser.run(f"return {rows}")
        shoot(browser, "messages")
        delete = "document.querySelector('#message-rows button').click()"
        browser.run(delete)
        answer("sure-no", "message 1 of queue dead")
        assert dead.qsize() == 1
        browser.run(delete)
        answer("sure-yes", "message 1 of queue dead")
        browser.until("document.getElementById('messages-said').textContent.includes('has ended')")
        assert dead.qsize() == 0
        browser.run("document.getElementById('messages-close').click()")
        click("Pause")
        answer("sure-yes", "queue dead")
        browser.until(f"{found}.textContent.includes('PAUSED')")
        click("Resume")
        answer("sure-yes", "queue dead")
        browser.until(f"!{found}.textContent.includes('PAUSED')")


def test_a_failover_while_the_page_is_open(world: World, browser: Chromium) -> None:
    """The master stops: the ring closes without it, and shows it as one that does not run and
    belongs there, as the legend says; the change is listed; when it comes back it joins again."""
    found = card("orders")
    master = f"{found}.querySelector('.ring .master text').textContent"
    world.nodes["tokyo"].transfer_master("orders", "paris", timeout=DEADLINE_S)
    browser.until(f"{master} === 'paris'")
    world.nodes["paris"].close()
    browser.until(f"{master} !== 'paris'")
    ring = f"[...{found}.querySelectorAll('.ring g')].map(g => g.getAttribute('class')).join()"
    browser.until(f"{ring} === 'master,sync,down'")
    assert browser.run(f"return {found}.querySelector('.ring .down text').textContent") == "paris"
    assert browser.run(f"return {found}.querySelectorAll('.ring .arrow').length") == 2
    invoices = card("invoices")
    browser.until(f"{invoices}.querySelectorAll('.ring g.down').length === 0")
    browser.until("document.getElementById('nodes').textContent.includes('not running')")
    browser.until("document.getElementById('changes').textContent.includes('paris → ')")
    browser.until(f"{found}.querySelector('.notes').textContent.includes('paris does not run')")
    shoot(browser, "failed")
    world.nodes["paris"] = world.start("paris")
    browser.until(f"{found}.querySelectorAll('.ring g.sync').length === 2")
    browser.until("!document.getElementById('nodes').textContent.includes('not running')")
    assert [line for line in browser.complaints() if "SEVERE" in line and "403" not in line] == []
