"""The console in a real browser, headless Chromium: what a person does with it, on a desk and on a phone.

The pictures that it takes of each page are kept in pytest's folder for the run (`console-pictures0`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from console_demo import (
    CHROMIUM,
    DRIVER,
    HOSTILE,
    PASSWORD,
    PICTURES,
    add_samples,
    as_device,
    browser,
    console,
    fill,
    log_in,
    take_pictures,
    wire_to,
)
from harness import Running, Wire

pytest.importorskip("selenium", reason="needs selenium")
pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver")

KEY = "key=user%3Aann"
PAGES = (
    "/",
    "/status",
    "/slowlog",
    f"/memory?{KEY}",
    f"/memory/query?{KEY}&q=where+are+the+keys&like=keys&why=piano",
    f"/memory/facts?{KEY}",
    f"/memory/entities?{KEY}",
    f"/memory/entity?{KEY}&name=tom&depth=2",
    f"/memory/record?{KEY}&id=garage",
    f"/memory/record?{KEY}&id=1",
    f"/memory/delete?{KEY}&id=garage",
    f"/memory/watch?{KEY}",
    f"/memory/audit?{KEY}",
    f"/memory/settings?{KEY}",
)

#: Whether one sees where the focus is: by an outline, in a drawing by a stroke.
FOCUS_SHOWS = """(each => getComputedStyle(each).outlineStyle !== 'none' ||
    [...each.querySelectorAll('.band, .node')].some(part => getComputedStyle(part).strokeWidth === '3px')
    )(document.activeElement)"""


class Screen:
    """A browser at the console."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, path: str) -> None:
        self.driver.get(self.address + path)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements("css selector", selector)
        return found

    def ask(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def type(self, *keys: str) -> None:
        """To whatever has the focus."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()

    def wait(self, holds: Callable[[], bool]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60, poll_frequency=0.05).until(lambda _: holds())

    def complaints(self) -> list[str]:
        """What the browser's console says, a refused script or style among it."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[Screen, Running]]:
    with console() as (server, address), browser() as driver:
        wire = wire_to(server)
        fill(wire)
        wire.close()
        add_samples(server)
        yield Screen(driver, address), server


@pytest.fixture
def logged_out(_shared: tuple[Screen, Running]) -> Screen:
    screen = _shared[0]
    as_device(screen.driver, 1100, 800)
    screen.open("/login")
    screen.driver.delete_all_cookies()
    screen.complaints()  # of the test before
    return screen


@pytest.fixture(scope="module")
def _session(_shared: tuple[Screen, Running]) -> dict[str, Any]:
    """The cookie of somebody who has logged in."""
    screen = _shared[0]
    screen.open("/login")
    screen.driver.delete_all_cookies()
    log_in(screen.driver, screen.address)
    screen.wait(lambda: screen.driver.current_url == screen.address + "/")
    [cookie] = screen.driver.get_cookies()
    found: dict[str, Any] = cookie
    return found


@pytest.fixture
def screen(_session: dict[str, Any], logged_out: Screen) -> Screen:
    logged_out.driver.add_cookie(_session)
    return logged_out


@pytest.fixture
def wire(_shared: tuple[Screen, Running]) -> Iterator[Wire]:
    wire = wire_to(_shared[1])
    yield wire
    wire.close()


def test_a_person_logs_in_queries_and_reads_why(logged_out: Screen) -> None:
    screen = logged_out
    screen.open(f"/memory/query?{KEY}")
    assert "/login" in screen.driver.current_url
    screen.one("[name=password]").send_keys("wrong\n")
    screen.wait(lambda: bool(screen.all(".error")))
    screen.one("[name=password]").send_keys(PASSWORD + "\n")
    screen.wait(lambda: "/memory/query" in screen.driver.current_url)  # on to where one was going
    screen.one("[name=q]").send_keys("where are the keys\n")
    screen.wait(lambda: bool(screen.all(".hit")))
    first = screen.one(".hit")
    assert "spare keys" in first.text
    score = float(first.find_element("css selector", ".score").text)
    adds = [float(cell.text) for cell in first.find_elements("css selector", ".numbers:not(.terms) td:last-child")]
    assert len(adds) == 3 and sum(adds) == pytest.approx(score, abs=2e-4)
    raw = float(first.find_element("css selector", ".numbers td").text)
    parts = [float(cell.text) for cell in first.find_elements("css selector", ".terms td:last-child")]
    assert sum(parts) == pytest.approx(raw, abs=2e-4)
    # What is drawn is as wide as what is said.
    bar = first.find_element("css selector", ".bar").rect["width"]
    for name, each in zip(("keyword", "recency", "importance"), adds, strict=True):
        width = first.find_element("css selector", f".bar .signal-{name}").rect["width"]
        assert width == pytest.approx(bar * each / score, abs=1.5)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("path", PAGES)
def test_on_a_phone_nothing_is_wider_than_the_screen(screen: Screen, path: str, dark: bool) -> None:
    as_device(screen.driver, 360, 780, dark=dark)
    screen.open(path)
    assert screen.ask("document.documentElement.scrollWidth") == 360
    assert screen.ask("window.innerWidth") == 360


@pytest.mark.parametrize("path", PAGES)
def test_pages_need_nothing_from_elsewhere(screen: Screen, path: str) -> None:
    screen.open(path)
    loaded = screen.ask("performance.getEntriesByType('resource').map(each => each.name)")
    assert loaded and all(name.startswith(screen.address + "/") for name in loaded)
    assert screen.complaints() == []
    unnamed = """[...document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a')]
        .filter(each => !(each.labels && each.labels.length) && !each.textContent.trim()).map(each => each.outerHTML)"""
    assert screen.ask(unnamed) == []
    ids = screen.ask("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(ids) == len(set(ids)) or set(ids) == {"main", "arrow"}


def test_dark_and_light(screen: Screen) -> None:
    shades = []
    for dark in (False, True):
        as_device(screen.driver, 1100, 800, dark=dark)
        screen.open(f"/memory/query?{KEY}&q=keys")
        for selector in ("body", ".card", ".hint", ".hit a", "button", ".numbers strong"):
            assert contrast(screen, selector) >= 4.5, (dark, selector)
        shades.append(luminance(screen.ask("getComputedStyle(document.body).backgroundColor")))
    assert shades[0] > 0.8 and shades[1] < 0.05


def luminance(colour: str) -> float:
    """Relative, as WCAG has it."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(screen: Screen, selector: str) -> float:
    """Of an element's text with what is behind it."""
    ink, paper = screen.driver.execute_script(
        """let node = document.querySelector(arguments[0]), style = getComputedStyle(node), behind = node;
        while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
        return [style.color, getComputedStyle(behind).backgroundColor]""",
        selector,
    )
    light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_all_of_it_without_a_mouse(logged_out: Screen) -> None:
    from selenium.webdriver.common.keys import Keys

    screen = logged_out

    def focused() -> Any:
        return screen.driver.switch_to.active_element

    def tab_to(holds: Callable[[Any], bool]) -> Any:
        for _ in range(80):
            screen.type(Keys.TAB)
            element = focused()
            if element.tag_name != "body":
                assert screen.ask(FOCUS_SHOWS), element.get_attribute("outerHTML")
            if holds(element):
                return element
        raise AssertionError("the keyboard does not lead there")

    screen.open("/login")
    assert focused().get_attribute("name") == "password"  # no need to look for it
    screen.type(PASSWORD, Keys.ENTER)
    screen.wait(lambda: screen.driver.current_url == screen.address + "/")
    screen.type(Keys.TAB)
    skip = focused()
    assert skip.text == "Skip to the content" and skip.rect["x"] >= 0  # it is seen once it has the focus
    screen.type(Keys.ENTER)
    assert screen.ask("document.activeElement.id") == "main"
    tab_to(lambda element: element.text == "user:ann")
    screen.type(Keys.ENTER)
    screen.wait(lambda: "/memory?" in screen.driver.current_url)
    tab_to(lambda element: element.text == "Query" and element.tag_name == "a")
    screen.type(Keys.ENTER)
    screen.wait(lambda: "/memory/query" in screen.driver.current_url)
    assert focused().get_attribute("name") == "q"
    screen.type("keys", Keys.ENTER)
    screen.wait(lambda: bool(screen.all(".hit")))
    summary = tab_to(lambda element: "for car" in element.get_attribute("textContent"))
    assert summary.tag_name == "summary"
    details = summary.find_element("xpath", "..")
    assert details.get_attribute("open") is None
    screen.type(Keys.ENTER)
    assert details.get_attribute("open") is not None
    # A fact in the drawing is a link like any other.
    screen.open(f"/memory/facts?{KEY}")
    tab_to(lambda element: screen.ask("document.activeElement.matches('svg a[href*=\"/memory/record\"]')"))
    screen.type(Keys.ENTER)
    screen.wait(lambda: "/memory/record" in screen.driver.current_url)


def test_a_record_is_edited_and_deleted(screen: Screen, wire: Wire) -> None:
    wire("MEM.ADD", "user:ann", "ID", "draft", "TEXT", "A first draft.", "META", "by", "ann")
    screen.open(f"/memory/record?{KEY}&id=draft")
    area = screen.one("textarea[name=text]")
    area.clear()
    area.send_keys("A second draft,\nin two lines.")
    screen.one("[name=importance]").clear()
    screen.one("[name=importance]").send_keys("0.9")
    screen.one("form.edit button").click()
    screen.wait(lambda: bool(screen.all(".note")))
    record = wire("MEM.GET", "user:ann", "draft", "WITHMETA")
    assert record[b"text"] == b"A second draft,\nin two lines." and record[b"importance"] == 0.9
    assert record[b"meta"] == {b"by": b"ann"}
    screen.one("form.edit .danger").click()
    screen.wait(lambda: "/memory/delete" in screen.driver.current_url)
    screen.one("main button.danger").click()
    screen.wait(lambda: "/memory?" in screen.driver.current_url)
    assert wire("MEM.GET", "user:ann", "draft") is None


def test_events_appear_while_one_looks(screen: Screen, wire: Wire) -> None:
    screen.open(f"/memory/watch?{KEY}")
    screen.wait(lambda: screen.one("#state").text == "Watching.")
    wire("MEM.ADD", "user:ann", "ID", HOSTILE, "TEXT", "x")
    wire("MEM.DEL", "user:ann", HOSTILE)
    screen.wait(lambda: len(screen.all("#events tr")) == 2)
    rows = screen.all("#events tr")
    newest, before = ([cell.text for cell in row.find_elements("css selector", "td")] for row in rows)
    assert newest[1] == "del" and before[1] == "add"
    assert "<script>" in before[2] and screen.driver.title.startswith("Live")
    link = screen.one("#events a")
    assert link.get_attribute("href").startswith(f"{screen.address}/memory/record?{KEY}&id=%3Cscript%3E")
    screen.one("#pause").click()
    wire("MEM.ADD", "user:ann", "ID", "unseen", "TEXT", "x")
    screen.one("#pause").click()
    wire("MEM.DEL", "user:ann", "unseen")
    screen.wait(lambda: len(screen.all("#events tr")) >= 3)
    assert screen.complaints() == []


def test_hostile_records_run_nothing(screen: Screen, wire: Wire) -> None:
    wire("MEM.CREATE", HOSTILE, "MODE", "SEARCH")
    wire("MEM.ADD", HOSTILE, "ID", HOSTILE, "TEXT", f"word {HOSTILE}", "META", HOSTILE, HOSTILE, "TAGS", 1, HOSTILE)
    wire("MEM.FACT", HOSTILE, HOSTILE, HOSTILE, HOSTILE, "TYPE", "ORG")
    screen.open("/")
    screen.driver.find_element("partial link text", "<script>").click()
    for tab in ("Records", "Query", "Facts", "Entities", "Live", "Audit", "Settings"):
        screen.driver.find_element("css selector", ".tabs").find_element("link text", tab).click()
        if tab == "Query":
            screen.one("[name=q]").send_keys("word\n")
            screen.wait(lambda: bool(screen.all(".hit")))
        assert screen.driver.title != "taken"
        assert screen.all("main img") == []
    assert screen.complaints() == []
    wire("DEL", HOSTILE)


def test_pictures(screen: Screen, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("console-pictures")
    take_pictures(screen.driver, screen.address, lambda name, data: (folder / f"{name}.png").write_bytes(data))
    for name, _, width, height, _ in PICTURES:
        data = (folder / f"{name}.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (width, height)
        assert len(data) > 8_000, f"{name} shows next to nothing"
