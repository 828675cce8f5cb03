"""The map: what its answers hold, what is refused, and the page in a browser."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from catfish_app import RTree, RTreeClient, serve_tree
from catfish_app._map import _picture, serve_map
from catfish_app._map._live import WATCHERS_MAX
from catfish_app._place import check_place, parse_place
from tests._patience import PATIENTLY
from tests.catfish._browser import Browser, browser, chromium
from tests.catfish._support import boxes, meeting
from tests.catfish.test_cli import ENVIRONMENT

UNIT = (0.0, 0.0, 1.0, 1.0)
RECTS = boxes(30_000)


class Site:
    """A running server and its pages."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.url, self.metrics, self.urls = facts["map"], facts["metrics"], facts["urls"]

    def get(self, path: str, host: str | None = None, **query: Any) -> Any:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        headers = {"Host": host} if host else {}
        request = urllib.request.Request(f"{self.url}{path}?{text}", headers=headers)
        return urllib.request.urlopen(request, timeout=240)

    def json(self, path: str, **query: Any) -> Any:
        with self.get(path, **query) as answer:
            return json.load(answer)

    def window(self, path: str, box: Any = UNIT, **query: Any) -> tuple[dict[str, Any], bytes]:
        with self.get(
            path, **dict(zip(("x0", "y0", "x1", "y1"), box, strict=True)), **query
        ) as got:
            return json.loads(got.headers["X-Facts"]), got.read()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("map")
    np.save(folder / "boxes.npy", RECTS)
    process = subprocess.Popen(
        [
            *(sys.executable, *PATIENTLY, "catfish_app", "serve"),
            *(f"l5+unix://{folder}/t.sock", "--json"),
            *("--load", str(folder / "boxes.npy"), "--http", "0", "--metrics", "0"),
            *("--snapshot", str(folder / "tree.snapshot"), "--share"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    yield Site(json.loads(line))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0 and "Traceback" not in errors, errors


# ---- pictures ------------------------------------------------------------------------------------


def test_a_picture_counts_what_covers_each_cell() -> None:
    rects = boxes(300, edge=0.2)
    rects[0] = (-5, -5, 5, 5)
    width, height, window = 40, 25, (0.1, 0.2, 0.9, 0.7)
    low = np.array(window[:2])
    scale = np.array([width, height]) / (np.array(window[2:]) - low)
    most = np.array([width - 1, height - 1])
    counts = np.zeros((height, width), int)
    for row in meeting(rects, window):
        first = np.clip(np.floor((rects[row, :2] - low) * scale), 0, most).astype(int)
        last = np.clip(np.floor((rects[row, 2:] - low) * scale), 0, most).astype(int)
        counts[first[1] : last[1] + 1, first[0] : last[0] + 1] += 1
    picture = _picture.paint(RTree.bulk(rects), window, width, height)
    assert picture.total == len(meeting(rects, window)) and picture.most == counts.max()
    by_count = {int(n): set(picture.shades[counts == n].tolist()) for n in np.unique(counts)}
    assert all(len(shades) == 1 for shades in by_count.values())
    shades = [by_count[n].pop() for n in sorted(by_count)]
    assert shades == sorted(set(shades)) and shades[-1] == 255


def test_few_are_boxes_and_many_a_picture() -> None:
    tree = RTree.bulk(RECTS)
    near = _picture.look(tree, (0.4, 0.4, 0.5, 0.5), 800, 600)
    assert isinstance(near, _picture.Boxes) and not near.more
    assert sorted(near.ids.tolist()) == meeting(RECTS, (0.4, 0.4, 0.5, 0.5))
    assert np.array_equal(near.rects, RECTS[near.ids.astype(int)])
    far = _picture.look(tree, UNIT, 10**9, 0)
    assert isinstance(far, _picture.Picture) and far.shades.shape == (1, _picture.SIDE_MAX)
    assert far.total == len(RECTS)


def test_levels() -> None:
    tree = RTree.bulk(RECTS)
    counts = _picture.level_counts(tree)
    assert len(counts) == tree.stats().height and counts[-1] == 1
    for level, count in enumerate(counts, 1):
        found = _picture.boxes(tree, level, _picture.WORLD)
        assert np.array_equal(
            np.sort(found.rects, axis=0), np.sort(tree.level_rects(level - 1), axis=0)
        )
        assert len(found.ids) == count and not found.more
        few = _picture.boxes(tree, level, _picture.WORLD, most=1)
        assert len(few.ids) == 1 and few.more == (count > 1)
    with pytest.raises(IndexError, match="there are 3 above"):
        _picture.boxes(tree, 4, UNIT)
    assert _picture.level_counts(RTree()) == []
    assert len(_picture.boxes(RTree(), 0, UNIT).ids) == 0


# ---- answers -------------------------------------------------------------------------------------


def test_the_api(site: Site) -> None:
    info = site.json("api/info")
    assert (
        info["mode"] == "adaptive"
        and info["entries"] == 30_000
        and info["levels"][-1] == 1
        and info["transport"] == "shm"
    )
    facts, body = site.window("api/view", width=300, height=200)
    assert facts["kind"] == "picture" and len(body) == 300 * 200 and facts["total"] == 30_000
    box = (0.2, 0.2, 0.3, 0.3)
    facts, body = site.window("api/view", box, width=300, height=200)
    ids = np.frombuffer(body, "<u8", offset=32 * facts["total"])
    assert facts["kind"] == "boxes" and sorted(ids.tolist()) == meeting(RECTS, box)
    facts, body = site.window("api/level", level=len(info["levels"]))
    assert facts == {"kind": "boxes", "total": 1, "more": False}
    answer = site.json("api/search", x0=0.2, y0=0.2, x1=0.3, y1=0.3)
    assert answer["count"] == len(ids) and answer["path"] in ("server", "client")
    assert len(answer["ids"]) == 100 and set(map(int, answer["ids"])) <= set(ids.tolist())
    with site.get("api/live") as events:
        lines = [events.readline().decode() for _ in range(2)]
        assert lines[0] == "event: history\n" and isinstance(json.loads(lines[1][6:]), list)
        while events.readline() != b"event: sample\n":
            pass
        sample = json.loads(events.readline()[6:])
        assert sample["entries"] == 30_000 and sum(sample["paths"].values()) == 16


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("api/view?x0=1&y0=0&x1=2", 400, "four numbers"),
        ("api/view?x0=nan&y0=0&x1=2&y1=1&width=1&height=1", 400, "finite"),
        ("api/view?x0=0&y0=0&x1=1&y1=1&width=9999999999&height=1", 400, "width is"),
        ("api/view?x0=0&y0=0&x1=1&y1=1&width=%D9%A3&height=1", 400, "width is"),
        ("api/level?x0=0&y0=0&x1=1&y1=1&level=9", 404, "level is 9"),
        ("api/level?x0=0&y0=0&x1=1&y1=1&level=0", 404, "level is 0"),
        ("static/../_app.py", 404, ""),
        ("static/%2e%2e/_app.py", 404, ""),
        ("nothing", 404, ""),
    ],
)
def test_what_makes_no_sense_is_refused(site: Site, path: str, status: int, reason: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(site.url + path, timeout=240)
    with caught.value as answer:
        assert answer.code == status and reason in answer.read().decode()


def test_pages_of_others_get_nothing(site: Site) -> None:
    with site.get("") as page:
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        site.get("api/info", host="evil.example")
    with caught.value as answer:
        assert answer.code == 400


def test_metrics(site: Site) -> None:
    with urllib.request.urlopen(site.metrics, timeout=240) as answer:
        alone = answer.read().decode()
    with site.get("metrics") as answer:
        text = answer.read().decode()
    names = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)
    assert set(names) == set(re.findall(r"^# TYPE (\w+)", alone, re.MULTILINE))
    assert {"l5_connections_total", "l5_server_requests_total", "process_open_fds"} <= set(names)
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["catfish_entries"]) == 30_000
    assert float(values['catfish_requests_total{operation="search"}']) >= 1
    assert float(values['catfish_nodes{kind="leaf"}']) == -(-30_000 // 21)
    assert float(values["catfish_snapshot_entries"]) == 30_000
    assert 0 <= float(values["catfish_busy_ratio"]) <= 1


# ---- where -------------------------------------------------------------------------------------


def test_places() -> None:
    assert parse_place("80") == ("127.0.0.1", 80) and parse_place("[::1]:0") == ("::1", 0)
    for text in ("", "x", "a:b", "70000", "-1", "٣"):
        with pytest.raises(ValueError, match="wanted is PORT"):
            parse_place(text)
    with pytest.raises(ValueError, match="other machines"):
        check_place("0.0.0.0", 0, insecure=False)
    assert check_place("0.0.0.0", 0, insecure=True) == (socket.AF_INET, ("0.0.0.0", 0))


@pytest.mark.anyio
async def test_it_lives_as_long_as_its_block(tmp_path: Path, anyio_backend_name: str) -> None:
    tree = RTree.bulk(boxes(100))
    async with serve_tree(tree, f"l5+unix://{tmp_path}/t.sock") as server:
        if anyio_backend_name != "asyncio":
            with pytest.raises(RuntimeError, match="asyncio"):
                async with serve_map(server, "0"):
                    pass
            return
        async with serve_map(server, "0", interval_s=0.05) as url:
            port = int(url.rstrip("/").rpartition(":")[2])
            streams = [await anyio.connect_tcp("127.0.0.1", port) for _ in range(WATCHERS_MAX + 1)]
            said: list[bytes] = []
            for stream in streams:
                await stream.send(b"GET /api/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                said.append(await stream.receive(12))
            assert said == [b"HTTP/1.1 200"] * WATCHERS_MAX + [b"HTTP/1.1 503"]
        for stream in streams:  # pages that watch do not keep it
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.receive()
            await stream.aclose()
        with pytest.raises(OSError):
            await anyio.connect_tcp("127.0.0.1", port)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_its_own_client_is_patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no reason not to start; who says otherwise is heard."""
    connect, asked = RTreeClient.connect, list[Any]()

    async def note(url: str, **options: Any) -> RTreeClient:
        asked.append(options["hello_timeout"])
        return await connect(url, **options)

    monkeypatch.setattr(RTreeClient, "connect", note)
    async with serve_tree(RTree.bulk(boxes(100)), f"l5+unix://{tmp_path}/t.sock") as server:
        async with serve_map(server, "0"), serve_map(server, "0", hello_timeout=50.0):
            pass
    assert asked[0] >= 60 and asked[1] == 50


# ---- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(site: Site) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")
    with browser() as page:
        page.open(site.url)
        shown(page)
        yield page
        assert page.complaints == []
        assert [url for url in page.urls if not url.startswith((site.url, "data:"))] == []


def shown(page: Browser) -> str:
    """Wait until what is seen is what there is; its kind."""
    return page.until("document.body?.dataset.fetched === 'yes' && document.body.dataset.kind")


def pixels(page: Browser, kind: str) -> int:
    """How many pixels of the map are of a kind, by a test of their (r, g, b, a)."""
    return page.run(
        "(() => { const map = document.getElementById('map');"
        "const copy = new OffscreenCanvas(map.width, map.height);"
        "const pen = copy.getContext('2d', {willReadFrequently: true}); pen.drawImage(map, 0, 0);"
        "const data = pen.getImageData(0, 0, map.width, map.height).data; let n = 0;"
        "for (let i = 0; i < data.length; i += 4) {"
        "const r = data[i], g = data[i + 1], b = data[i + 2], a = data[i + 3];"
        f"if ({kind}) n++; }} return n; }})()"
    )


PINK = "a > 100 && r > 200 && g < 190 && b > 120 && r > g + 40"


def test_the_page_shows_the_tree(page: Browser, site: Site) -> None:
    assert page.text("#entries") == "30,000"
    levels = page.run("[...document.querySelectorAll('.level')].map(e => e.innerText)")
    counts = site.json("api/info")["levels"]
    assert [
        int(re.findall(r"[\d,]+(?= node)", text)[0].replace(",", "")) for text in levels
    ] == counts[::-1]
    assert shown(page) == "picture" and pixels(page, "a > 200") > 10_000
    page.until("document.querySelector('#chart-rate b').textContent.endsWith('/s')")
    page.until("document.querySelector('#chart-path path').getAttribute('d').length > 0")
    assert page.text("#state") == "live"


def test_levels_are_shown_one_by_one(page: Browser) -> None:
    before = pixels(page, "a > 200")
    page.click(".level:nth-last-child(2)")
    shown(page)
    assert (
        page.run("document.querySelector('.level:nth-last-child(2)').getAttribute('aria-pressed')")
        == "false"
    )
    without = pixels(page, "a > 200")
    page.click(".level:nth-last-child(2)")
    shown(page)
    assert without < before == pixels(page, "a > 200")


def end_the_search(page: Browser) -> None:
    page.call("Runtime.evaluate", expression="document.getElementById('map').focus()")
    page.key("Escape")
    page.until("document.querySelector('#result').childElementCount === 0")


def test_a_box_is_drawn_and_searched(page: Browser) -> None:
    end_the_search(page)  # of another test
    assert pixels(page, PINK) == 0
    page.drag((600, 380), (660, 430), shift=True)
    page.until("!!document.querySelector('#result b')")
    box = [
        float(page.run(f"document.getElementById('{side}').value"))
        for side in ("x0", "y0", "x1", "y1")
    ]
    found = int(page.text("#result b").replace(",", ""))
    assert found == pytest.approx(len(meeting(RECTS, box)), rel=0.02)  # the form's digits are fewer
    assert page.text("#searches .path") in ("server", "client")
    page.until("(document.getElementById('map'), true)")
    assert pixels(page, PINK) > 500
    end_the_search(page)


def test_the_place_of_the_pointer_is_told_beside_the_tools(page: Browser) -> None:
    page.run("document.getElementById('place').textContent = ''")
    assert page.run("getComputedStyle(document.getElementById('place')).display") == "none"
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=600, y=400)
    page.until("/^-?[0-9.]+  -?[0-9.]+$/.test(document.getElementById('place').textContent)")
    tools, place = (
        page.run(f"JSON.parse(JSON.stringify(document.getElementById('{name}')"
                 ".getBoundingClientRect()))")
        for name in ("tools", "place")
    )  # fmt: skip
    assert place["left"] - tools["right"] >= 10
    middles = [box["top"] + box["height"] / 2 for box in (tools, place)]
    assert middles[0] == pytest.approx(middles[1], abs=1)


def test_the_form_searches_exactly(page: Browser) -> None:
    box = (0.25, 0.5, 0.3125, 0.5625)
    for side, value in zip(("x0", "y0", "x1", "y1"), box, strict=True):
        page.run(f"document.getElementById('{side}').value = '{value}'")
    page.click("#search button.main")
    wanted = f"{len(meeting(RECTS, box)):,}"
    page.until(f"document.querySelector('#result b')?.textContent === '{wanted}'")
    page.run("document.getElementById('x0').value = 'west'")
    page.click("#search button.main")
    page.until("!!document.querySelector('#result .error')")


def test_zooming_in_shows_rectangles(page: Browser) -> None:
    for _ in range(8):
        page.wheel(640, 400, -400)
    assert page.until(
        "document.body.dataset.fetched === 'yes' && document.body.dataset.kind === 'boxes'"
    )
    page.call("Runtime.evaluate", expression="document.getElementById('map').focus()")
    page.key("0")
    assert page.until(
        "document.body.dataset.fetched === 'yes' && document.body.dataset.kind === 'picture'"
    )


def test_light_and_dark(page: Browser) -> None:
    theme = "document.documentElement.dataset.theme"
    assert page.run(theme) == "dark"
    page.click("#theme")
    assert page.run(theme) == "light"
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert min(map(int, re.findall(r"\d+", ground)[:3])) > 200
    page.click("#theme")


def test_every_control_has_a_name_and_can_be_reached(page: Browser) -> None:
    nameless = page.run(
        "[...document.querySelectorAll('button, input, canvas, [role=img]')]"
        ".filter(e => !(e.ariaLabel || e.innerText?.trim() || e.labels?.length || e.title))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    seen: set[str] = set()
    page.run("document.activeElement.blur()")
    for _ in range(25):
        page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Tab", windowsVirtualKeyCode=9)
        page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", windowsVirtualKeyCode=9)
        seen.add(page.run("document.activeElement.id"))
    assert {"map", "zoom-in", "fit", "draw", "theme", "x0", "y1", "use-view"} <= seen
