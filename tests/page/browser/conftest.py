"""The page in a browser that shows it as people see it.

Run with:  REGARD_BROWSER=required pytest tests/page/browser

REGARD_BROWSER_SLOWDOWN=5 throttles the pages' processor to a fifth. No test waits for time: each
waits until the page declares that it has settled, or for what it shows.
"""

import contextlib
import math

import pytest
import torch

from regard.gpt import load
from regard.page import RecordingSubject
from regard.page.subjects import ModelSubject

EXAMPLE = "The cat sat on the mat and blinked. Still the cat sat on the mat."


@pytest.fixture(scope="session")
def settled():
    """Wait until the page declares that no request, timer or drawing is outstanding."""

    def wait(page):  # or a frame of one
        page.locator("html[data-settled=true]").wait_for()
        return page

    return wait


@pytest.fixture(scope="session")
def written():
    """A weight as the page writes it: two or three figures that count, below 0.001 as a power."""

    def write(weight):
        if weight in {0, 1}:
            return f"{weight:.0f}"
        if weight >= 0.9995:
            return "0.999+"
        if weight >= 0.001:
            return f"{weight:.{3 if weight >= 0.01 else 4}f}"
        digits, exponent = f"{weight:.1e}".split("e")
        power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return power if digits == "1.0" else f"{digits.removesuffix('.0')}·{power}"

    return write


@pytest.fixture(scope="session")
def in_words():
    """A weight or a probability as the page's sentences have it: two decimals."""

    def write(value):
        if 0 < value < 0.005:
            return "under 0.01"
        return "over 0.99" if 0.995 <= value < 1 else f"{value:.2f}"

    return write


@pytest.fixture(scope="session")
def finding(in_words):
    """What the page says once heads were switched off and tokens hidden, one at a time."""

    def write(run, heads, keys):
        _, piece, now = run.following[0]
        name = f"\u2068{piece.strip()}\u2069"
        effects = {
            f"head {layer}·{head} switched off": value
            for layer, row in enumerate(heads["effects"])
            for head, value in enumerate(row)
        }
        words = [f"\u2068“{token.strip()}”\u2069" for token in run.tokens]
        hidden = {
            f"token {key} {words[key]} hidden": value for key, value in enumerate(keys["effects"])
        }
        parts = []
        for measured, what in ((effects, "head switched off"), (hidden, "token hidden")):
            least = min(measured, key=measured.get)
            left = math.exp(heads["unchanged"] + measured[least])
            about = "it" if parts else f"{name} ({in_words(now)})"
            if now - left >= 0.02:
                parts.append(f"with {least}, {about} falls to {in_words(left)}")
            else:
                more = "" if left >= 0.995 else " or more"
                parts.append(f"with any one {what}, {about} keeps {in_words(left)}{more}")
        return f"W{'; '.join(parts)[1:]}."

    return write


@pytest.fixture(scope="session")
def shipped():
    """The model that comes with regard."""
    return load(None)


@pytest.fixture(scope="module")
def model(shipped):
    return ModelSubject(*shipped, title="the model", text=EXAMPLE)


@pytest.fixture(scope="module")
def long(make_recording):
    """One head over 16,384 tokens, and its queries and keys."""
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 16384, 16, generator=generator)
    return RecordingSubject(make_recording([(query, key)]), title="long"), query[0, 0], key[0, 0]


@pytest.fixture(scope="module")
def running():
    """Serve things for the tests of a file."""
    from regard.page import Explorer

    explorers = {}

    def start(subject):
        if id(subject) not in explorers:
            explorers[id(subject)] = Explorer(subject), subject
            explorers[id(subject)][0].start()
        return explorers[id(subject)][0]

    yield start
    for explorer, _ in explorers.values():
        explorer.stop()


@contextlib.contextmanager
def _showing(pages, running, settled):
    """Open pages, and close them; what they complain about fails the test."""
    with contextlib.ExitStack() as stack:
        complaints = []

        def go(subject, hash="#p=panel", *, width=1440, height=900, offline=False, **options):  # noqa: A002 - an address has it
            explorer = running(subject)
            viewport = {"width": width, "height": height}
            page = stack.enter_context(pages(viewport=viewport, **options))

            def console(message):
                if message.type == "error" and not offline:
                    complaints.append(f"{message.text} {message.location}")

            def on_request(request):
                if not request.url.startswith((explorer.url, "data:", "blob:")):
                    complaints.append(f"asks {request.url}")

            page.on("console", console)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", on_request)
            page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
            page.goto(explorer.url + hash)
            page.locator("#tokens .token").first.wait_for()
            return settled(page)

        yield go
    assert complaints == []


@pytest.fixture
def show(pages, running, settled):
    """Open the page of something; whatever it complains about fails the test."""
    with _showing(pages, running, settled) as go:
        yield go


@pytest.fixture(scope="module")
def show_once(pages, running, settled):
    """The same for pages that several tests of a file share."""
    with _showing(pages, running, settled) as go:
        yield go


@pytest.fixture(scope="session")
def resize():
    """Give a page another width or height, and wait until it has drawn itself anew."""
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

    def change(page, width, height=None):
        page.set_viewport_size({"width": width, "height": height or page.viewport_size["height"]})
        page.evaluate(frames)  # in which the page sees that its size is another
        page.locator("html[data-settled=true]").wait_for()

    return change
