"""The landing page: what it promises, on a first screen, from any host, in few bytes."""

import functools
import http.server
import re
import threading
from urllib.parse import urlsplit

import pytest
from jinja2 import Environment, FileSystemLoader
from regard_site.front import real_model
from regard_site.sources import ROOT, Page, sections

from regard.gpt.config import HAS_READ

# Of the page's own files, without the model. Measured: 20 kB of the page, 14 of them pictures, and
# 28 of colours, style and script.
MOST_OF_ALL, MOST_OF_PAGE = 60_000, 28_000  # bytes
PIECE = 2_900_000  # bytes; of the real model that the fixture has
STYLES_AND_SCRIPTS = {"static/colours.css", "static/site.css", "static/site.js"}


@pytest.fixture(scope="module")
def front(site):
    return (site / "index.html").read_text("utf-8")


@pytest.fixture(scope="module")
def host(site, tmp_path_factory):
    """Serve the site at some address below the root of a plain host, and note what is asked for."""
    root = tmp_path_factory.mktemp("host")
    (root / "some").mkdir()
    (root / "some/where").symlink_to(site)
    asked = []

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_request(self, code="-", size="-"):
            asked.append((self.path, int(code)))

    handler = functools.partial(Quiet, directory=root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/some/where/", asked
        server.shutdown()
        thread.join()


def words(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_it_is_a_page_of_its_own(front, site):
    assert front.count("<h1") == 1
    assert "<table" not in front
    assert HAS_READ in words(front.partition("<iframe")[0])
    doors = re.findall(
        r'<section class="door" aria-labelledby="(\w+)">(.*?)</section>', front, re.DOTALL
    )
    assert [name for name, _ in doors][:3] == ["learn", "look", "build"]
    assert '<a href="learn.html#one-hour">Learn it</a>' in doors[0][1]
    for _, door in doors[:3]:
        assert len(re.findall(r'<svg [^>]*role="img" aria-label="\w', door)) == 1
        (line,) = re.findall(r"<pre><code>(.+?)</code></pre>", door)
        assert line.startswith("regard ")
    readme = (site / "readme.html").read_text("utf-8")
    assert "Map" in readme
    assert 'id="install"' in readme
    assert "readme.html#install" in front


def test_a_real_model_and_the_atlas_are_linked_where_they_are(front, site):
    link = re.search(r'<a href="live/smollm2/index\.html">([^<]*)</a>', front)
    assert link
    assert "(3 MB)" in link[1]
    assert (site / "live/smollm2/pieces/0").stat().st_size == PIECE
    assert '<a href="gallery/atlas.html">The atlas' in front
    assert "5 layers of 3 heads" in front


def test_where_they_are_not_it_says_how_to_get_them(site):
    templates = Environment(loader=FileSystemLoader(ROOT / "course/regard_site/templates"))
    known = {"live": True, "doors": [], "has_read": HAS_READ, "sections": sections()}
    front = templates.get_template("front.html").render(
        page=Page("index.html", "regard"), to=str, real=None, atlas=None, **known
    )
    assert "live/smollm2" not in front
    assert "gallery/atlas" not in front
    assert '<a href="#real">A real one</a>' in front
    assert "<code>regard report --live --model HuggingFaceTB/SmolLM2-135M</code>" in front
    assert "<code>regard atlas --corpus texts/ --out atlas</code>" in front
    assert real_model(site / "gallery") is None


def test_its_own_files_are_small(front, site):
    own = {"index.html", *STYLES_AND_SCRIPTS}
    loads = set(re.findall(r'(?:src|<link rel="stylesheet" href)="([^"#]+)', front))
    assert loads == STYLES_AND_SCRIPTS | {"live.html"}
    sizes = {name: (site / name).stat().st_size for name in own}
    assert sizes["index.html"] < MOST_OF_PAGE, sizes
    assert sum(sizes.values()) < MOST_OF_ALL, sizes


def test_it_is_painted_before_anything_else_is_asked_for(pages, host):
    """What Lighthouse counts, by requests and bytes: the clock of a shared machine tells little."""
    address, asked = host
    with pages(viewport={"width": 1280, "height": 720}) as page:
        page.goto(address)
        page.frame_locator("iframe").get_by_role("heading", name="Live").wait_for()
        seen = page.evaluate(
            """async () => {
              const entries = (type) => new Promise((done) => new PerformanceObserver((list) =>
                done(list.getEntries())).observe({ type, buffered: true }));
              const [paint] = (await entries("paint")).filter(({ name }) =>
                name === "first-contentful-paint");
              const shifts = [];
              new PerformanceObserver((list) => shifts.push(...list.getEntries()))
                .observe({ type: "layout-shift", buffered: true });
              await new Promise((done) => setTimeout(done));
              const resources = performance.getEntriesByType("resource").map((one) =>
                [one.name, one.renderBlockingStatus]);
              return { paint: paint.startTime, resources,
                shift: shifts.reduce((sum, one) => sum + one.value, 0) };
            }"""
        )
    assert all(urlsplit(name).path.startswith("/some/where/") for name, _ in seen["resources"])
    blocking = {name.removeprefix(address) for name, how in seen["resources"] if how == "blocking"}
    assert blocking == {"static/colours.css", "static/site.css"}
    assert seen["shift"] < 0.05  # Lighthouse calls 0.1 good
    assert seen["paint"] < 10_000  # ms; measured 0.3 to 0.6 s on two cores that had nine other jobs
    assert all(path.startswith("/some/where/") and code == 200 for path, code in asked), asked


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1280, 720), (390, 844)])
def test_the_promise_and_the_model_are_on_the_first_screen(show, width, height):
    page = show("index.html", width=width, height=height)
    promise, frame = page.locator("h1").bounding_box(), page.locator("iframe").bounding_box()
    assert promise["y"] + promise["height"] < frame["y"] < 0.4 * height
    assert min(height, frame["y"] + frame["height"]) - frame["y"] > 0.6 * height
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_colours_follow_the_system_until_one_is_chosen(show):
    """As those of the live page within do."""
    page = show("index.html", color_scheme="light")
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    page.locator("#theme").click()  # from now on as it was chosen
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.evaluate(frames)  # in which the page is told
    assert page.locator("html").get_attribute("data-theme") == "light"
