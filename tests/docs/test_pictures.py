"""The pictures that the pages show are the ones that `make pictures` draws."""

import re

import pages
import pictures
import pytest
from dark import with_dark_colours

STORED = pages.FOLDER / "pictures"
NAMES = sorted(path.name for path in STORED.glob("*.svg"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    pictures.draw(folder)
    return folder


def drawn_with(svg):
    """The library and its version; another one writes other files."""
    return re.search(r"Matplotlib v[\w.]+", svg)[0]


def test_every_picture_is_drawn_and_every_one_is_shown(drawn):
    texts = [page.read_text(encoding="utf-8") for page in pages.FOLDER.glob("*.md")]
    shown = re.findall(r"!\[[^]]+\]\(pictures/([^)]+\.svg)\)", "\n".join(texts))
    assert sorted(path.name for path in drawn.iterdir()) == NAMES == sorted(set(shown))


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_up_to_date(name, drawn):
    stored, new = ((f / name).read_text(encoding="utf-8") for f in (STORED, drawn))
    if drawn_with(stored) != drawn_with(new):
        pytest.skip(f"stored with {drawn_with(stored)}, installed is {drawn_with(new)}")
    assert new == stored, "draw it anew with: make pictures"


@pytest.mark.parametrize("name", NAMES)
def test_picture_fetches_nothing(name):
    text = (STORED / name).read_text(encoding="utf-8")
    addresses = re.findall(r"(?:href|src)=\"(?!#)([^\"]+)\"|url\((?!#)([^)]+)\)", text)
    assert addresses == []


def test_a_picture_turns_dark_with_the_screen():
    svg = '<svg a="b">\n<g style="fill: #ffffff; stroke: #24292f"/></svg>'
    dark = with_dark_colours(svg)
    assert dark.replace(re.search(r"\n<style>.*</style>\n", dark, re.DOTALL)[0], "") == svg
    assert '[style*="fill: #ffffff"]{fill:#1b1b1b!important}' in dark
    assert '[style*="stroke: #24292f"]{stroke:#e6ecf5!important}' in dark
