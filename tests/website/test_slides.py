"""The slides: one file that needs no network, of the pages' own pictures and printed numbers."""

import base64
import html
import re

import pytest
from regard_site.slides import write_slides
from regard_site.sources import ROOT


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    file = tmp_path_factory.mktemp("slides") / "slides.html"
    write_slides(file)
    return file.read_text("utf-8")


def test_pictures_are_those_of_the_pages_and_nothing_is_loaded(slides):
    pictures = {path.read_bytes() for path in (ROOT / "docs/pictures").glob("*.svg")}
    shown = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', slides)
    assert len(shown) >= 8
    assert {base64.b64decode(one) for one in shown} <= pictures
    assert re.findall(r'(?:src|href)="(?!data:|#)([^"]+)"', slides) == []


def test_numbers_are_those_that_the_pages_print(slides):
    printed = [
        html.unescape(re.sub(r"<[^>]+>", "", block))
        for block in re.findall(r'<pre class="session">(.*?)</pre>', slides, flags=re.DOTALL)
    ]
    pages = "\n".join(path.read_text("utf-8") for path in (ROOT / "docs").glob("0*.md"))
    assert len(printed) == 3
    assert all(block.strip() in pages for block in printed)


def test_the_plan_names_slides_that_exist(slides):
    plan = (ROOT / "docs/teaching.md").read_text("utf-8")
    named = re.findall(r"\| slides? (\d+)(?:, (\d+))?", plan)
    numbers = {int(number) for pair in named for number in pair if number}
    assert {f'id="slide-{number}"' in slides for number in numbers} == {True}
    minutes = [int(minute) for minute in re.findall(r"^\| (\d+) \|", plan, flags=re.MULTILINE)]
    assert minutes[0] == 0
    assert minutes == sorted(minutes)
    assert 170 < minutes[-1] < 180


@pytest.mark.thorough
def test_keys_turn_the_slides_and_axe_finds_nothing(pages, slides, tmp_path):
    from axe_playwright_python.sync_playwright import Axe

    file = tmp_path / "slides.html"
    file.write_text(slides, "utf-8")
    with pages(viewport={"width": 1280, "height": 720}, reduced_motion="reduce") as page:
        page.goto(file.as_uri())
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "Math.abs(document.getElementById('slide-1').getBoundingClientRect().top) < 2"
        )
        page.keyboard.press("n")
        assert page.locator("#slide-1 .note").is_visible()
        axe = Axe().run(page, options={"preload": False})
        assert axe.violations_count == 0, axe.generate_report()
