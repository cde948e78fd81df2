"""The pictures that the pages show are the ones that `make pictures` draws."""

import re
from importlib import import_module

import pages
import pictures
import pytest
from dark import with_dark_colours
from support import real

STORED = pages.FOLDER / "pictures"
NAMES = sorted(path.name for path in STORED.glob("*.svg"))
DRAWN = sorted(path.stem for path in (pages.FOLDER / "figures").glob("page_*.py"))
# Those whose pages run in a moment; the others take part in make thorough.
QUICK = {"page_01", "page_02", "page_05", "page_07", "page_08", "page_09b"}
WITH_REAL = {"page_15"}


def drawn_by(page):
    """The names of a page's pictures, without drawing them."""
    return [f"{name}.svg" for name in import_module(f"figures.{page}").PICTURES]


def drawn_with(svg):
    """The library and its version; another one writes other files."""
    return re.search(r"Matplotlib v[\w.]+", svg)[0]


def test_every_picture_is_drawn_and_every_one_is_shown():
    texts = [page.read_text(encoding="utf-8") for page in pages.FOLDER.glob("*.md")]
    shown = re.findall(r"!\[[^]]+\]\(pictures/([^)]+\.svg)\)", "\n".join(texts))
    drawn = [name for page in DRAWN for name in drawn_by(page)]
    assert sorted(drawn) == NAMES == sorted(set(shown))


@pytest.mark.parametrize(
    "page", [pytest.param(one, marks=[pytest.mark.thorough] * (one not in QUICK)) for one in DRAWN]
)
def test_pictures_of_a_page_are_up_to_date(page, tmp_path):
    if page in WITH_REAL:
        real.smollm2_file()  # or leave it out
    pictures.draw(tmp_path, page)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(drawn_by(page))
    for name in drawn_by(page):
        stored, new = ((f / name).read_text(encoding="utf-8") for f in (STORED, tmp_path))
        if drawn_with(stored) != drawn_with(new):
            pytest.skip(f"stored with {drawn_with(stored)}, installed is {drawn_with(new)}")
        assert new == stored, f"{name}: draw it anew with: make pictures"


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
