"""A server with something to look at in its console, and a browser.

`python tests/console_demo.py [folder]` takes the pictures of docs/console.md.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import DAY, HOUR, JUNE, Clock, Running, Wire, free_port

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
PASSWORD = "open sesame"
#: What a person would mind seeing run.
HOSTILE = """<script>document.title="taken"</script>"><img src=x onerror="document.title='taken'">'{{7*7}}&amp;\u202e"""

NOTES = [
    ("keys", "The spare keys hang behind the door of the shed.", 0.9, "home", (0.9, 0.1, 0.1, 0.2)),
    ("shed", "The shed needs a new lock before winter.", 0.6, "home", (0.8, 0.3, 0.1, 0.3)),
    ("garage", "Ann lent the garage key to Tom last weekend.", 0.7, "home,people", (0.85, 0.2, 0.4, 0.1)),
    ("wifi", "The password of the guest network is on the fridge.", 0.5, "home", (0.4, 0.1, 0.0, 0.9)),
    ("coffee", "Ann drinks her coffee black, never after four.", 0.4, "taste", (0.0, 0.9, 0.2, 0.1)),
    ("tea", "Tom prefers green tea in the morning.", 0.3, "taste,people", (0.0, 0.85, 0.4, 0.1)),
    ("car", "The car key is in the blue bowl near the door.", 0.8, "home", (0.95, 0.05, 0.1, 0.15)),
    ("piano", "The piano in A minor: the black keys of the second octave stick.", 0.2, "music", (0.1, 0.1, 0.9, 0.0)),
    ("bike", "The bicycle's lock opens with 4-7-1-1.", 0.6, "home", (0.7, 0.0, 0.2, 0.5)),
    ("dentist", "Dentist on the 12th at nine, bring the form.", 0.5, "dates", (0.1, 0.2, 0.1, 0.1)),
]
PAST = [
    # subject, predicate, object, type, begun and ended so many days ago, which of them it supersedes
    ("ann", "works at", "acme", "ORG", 900, None, None),
    ("ann", "works at", "initech", "ORG", 420, None, 0),
    ("ann", "lives in", "lisbon", "PLACE", 1000, None, None),
    ("ann", "lives in", "porto", "PLACE", 300, None, 2),
    ("ann", "is learning", "rust", "SKILL", 200, None, None),
    ("ann", "is married to", "tom", "PERSON", 800, None, None),
    ("tom", "works at", "initech", "ORG", 700, None, None),
    ("tom", "plays", "the piano", "SKILL", 950, None, None),
    ("ann", "rented", "a studio in alfama", None, 1000, 640, None),
    ("initech", "is based in", "porto", "PLACE", 1000, None, None),
    ("ann", "is allergic to", "peanuts", "FOOD", 990, None, None),
    ("tom", "drives", "toyota corolla", "PRODUCT", 260, None, None),
    ("ann", "will speak at", "pycon", "EVENT", 30, -40, None),
]


def fill(wire: Wire, now: int = JUNE) -> None:
    """Some memories; `user:ann` is the one to look at."""
    wire("CONFIG", "SET", "mem-audit", "all")
    wire("CONFIG", "SET", "slowlog-log-slower-than", "0")
    wire("MEM.CREATE", "user:ann", "MODE", "HYBRID", "DIM", 4, "HISTORY", "ALL")
    for number, (name, text, importance, tags, vector) in enumerate(NOTES):
        words: list[Any] = ["FVEC", 4, *vector, "IMPORTANCE", importance, "AT", now - (number + 1) * 2 * DAY]
        listed = tags.split(",")
        words += ["TAGS", len(listed), *listed, "META", "source", "chat"]
        wire("MEM.ADD", "user:ann", "ID", name, "TEXT", text, *words)
    ids: list[Any] = []
    for subject, predicate, thing, kind, begun, ended, old in PAST:
        words = ["VALIDAT", now - begun * DAY, "AT", now - begun * DAY]
        words += ["TYPE", kind] if kind else []
        words += ["VALIDUNTIL", now - ended * DAY] if ended is not None else []
        words += ["SUPERSEDES", ids[old]] if old is not None else []
        ids.append(wire("MEM.FACT", "user:ann", subject, predicate, thing, *words))
    for name, count in (("agent:planner", 240), ("agent:writer", 90), ("team:support", 600), ("user:bob", 12)):
        wire("MEM.CREATE", name, "MODE", "SEARCH")
        for at in range(count):
            wire("MEM.ADD", name, "TEXT", f"Note {at}: step {at % 7} of plan {at // 7} is done, next comes the review.")
    wire("MEM.QUERY", "user:ann", "TEXT", "where are the keys", "FVEC", 4, 1, 0, 0, 0)
    wire("MEM.GET", "user:ann", "coffee")


def add_samples(server: Running) -> None:
    """Half an hour of numbers, as if it had run so long."""
    from recalld.server.console_samples import Sample

    samples = server.server.console.samples
    samples._sample = lambda: None
    ring = samples.ring
    ring.clear()
    for at in range(360):
        load = 400 + 300 * math.sin(at / 40) + 80 * math.sin(at / 3)
        resident = 90e6 + 120e3 * at + 4e6 * math.sin(at / 25)
        query = None if 120 < at < 132 else 1.4 + 0.6 * math.sin(at / 17) + 0.3 * math.sin(at / 2)
        ring.append(Sample(JUNE - (360 - at) * 5000, int(resident), 5, 12, load, 0.08 + load / 9000, query))


@contextmanager
def console(**options: str) -> Iterator[tuple[Running, str]]:
    """A server with a console, and its address. The password is PASSWORD unless `requirepass` is another."""
    settings = {"requirepass": PASSWORD, "console_bind": "127.0.0.1"} | options
    server, port = _started(settings)
    try:
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def _started(settings: dict[str, str]) -> tuple[Running, int]:
    """Somebody may be quicker to take the port: then another one."""
    for left in reversed(range(5)):
        port = free_port()
        server = Running(clock=Clock(), console_port=str(port), **settings)
        try:
            server.start()
            return server, port
        except OSError:
            if not left:
                raise
    raise AssertionError


def wire_to(server: Running, protocol: int = 3) -> Wire:
    wire = server.wire(2)
    if server.server.config["requirepass"]:
        wire("AUTH", PASSWORD)
    if protocol == 3:
        wire("HELLO", 3)
    return wire


@contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by selenium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    assert CHROMIUM is not None and DRIVER is not None
    options.binary_location = CHROMIUM
    # Without a sandbox, since tests may run as root; it sees nothing but our own pages.
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


def as_device(driver: Any, width: int, height: int, *, dark: bool = False) -> None:
    """Show pages as on a screen of this size."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def log_in(driver: Any, address: str, password: str = PASSWORD) -> None:
    driver.get(address + "/login")
    driver.find_element("name", "password").send_keys(password + "\n")


#: name, path, width and height of the screen, dark
PICTURES = (
    ("memories", "/", 1100, 620, False),
    ("query", "/memory/query?key=user%3Aann&q=where+are+the+keys&like=keys", 1100, 930, False),
    ("facts", "/memory/facts?key=user%3Aann", 1100, 930, False),
    ("entities", "/memory/entities?key=user%3Aann", 1100, 900, True),
    ("status", "/status", 1100, 900, True),
    ("record", "/memory/record?key=user%3Aann&id=garage", 1100, 1080, False),
    ("phone", "/memory/query?key=user%3Aann&q=where+are+the+keys&like=keys", 360, 1250, True),
)


def take_pictures(driver: Any, address: str, save: Callable[[str, bytes], object]) -> None:
    import base64

    for name, path, width, height, dark in PICTURES:
        as_device(driver, width, height, dark=dark)
        driver.get(address + path)
        shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        save(name, base64.b64decode(shot["data"]))


def main() -> int:
    if CHROMIUM is None or DRIVER is None:
        print("needs chromium and chromedriver", file=sys.stderr)
        return 1
    with console() as (server, address), browser() as driver:
        fill(wire_to(server))
        add_samples(server)
        assert isinstance(server.clock, Clock)
        server.clock.advance(2 * HOUR // 1000)
        log_in(driver, address)
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
        take_pictures(driver, address, lambda name, data: (folder / f"console-{name}.png").write_bytes(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
