"""The pictures that the pages show are the ones that `make pictures` draws."""

import re

import pages
import pictures
import pytest

STORED = pages.FOLDER / "pictures"
NAMES = sorted(path.name for path in STORED.glob("*.svg"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    pictures.draw(folder)
    return folder


def drawn_with(svg):
    """The library and its version; another one writes other files."""
    return re.search(r"(Matplotlib|Rich) v[\w.]+", svg)[0]


def test_every_picture_is_drawn_and_every_one_is_shown(drawn):
    texts = [page.read_text(encoding="utf-8") for page in pages.FOLDER.glob("*.md")]
    shown = re.findall(r"\]\(pictures/([^)]+\.svg)\)", "\n".join(texts))
    assert sorted(path.name for path in drawn.iterdir()) == NAMES == sorted(shown)


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
