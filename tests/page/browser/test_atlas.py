"""The pages of an atlas in a browser, opened from disk."""

import pytest
from support.atlas import HEADS, LAYERS, SCRIPT, MadeUp

from regard.page.atlas import write_atlas

NUMBER = 3  # of the table's columns: after the head and what it does, induction is the first
# Of head 1.1: a number with its margin, one without, and none.
SHOWN = {
    "window_90": "123 ± 5.7 tokens",
    "resting": "87\u00a0%",
    "moved": "not measured",
}


@pytest.fixture(scope="module")
def atlas():
    made = MadeUp(examples=3)
    (row,) = [row for row in made.rows if (row["layer"], row["head"]) == (1, 1)]
    row.update(
        window_90=123.4, window_90_margin=5.67, resting=0.871, resting_margin=None, moved=None
    )
    return made


@pytest.fixture(scope="module")
def index(atlas, tmp_path_factory):
    return write_atlas(atlas, tmp_path_factory.mktemp("atlas")).as_uri()


def axe(page):
    from axe_playwright_python.sync_playwright import Axe

    actual = Axe().run(page, options={"preload": False})  # it would fetch the style
    assert actual.violations_count == 0, actual.generate_report()


def fits(page, width):
    page.set_viewport_size({"width": width, "height": 720})
    return page.evaluate("document.documentElement.scrollWidth") == width


def listed(page):
    return page.locator("#listed tbody th").all_text_contents()


def test_overview_and_head(pages, index, atlas):
    complaints = []
    with pages(viewport={"width": 1280, "height": 720}, offline=True) as page:
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.goto(index)
        names = [f"{row['layer']}.{row['head']}" for row in atlas.rows]
        assert page.locator(".head-cell").count() == LAYERS * HEADS
        assert listed(page) == names

        # Sorted by a column, first down, then up; what was not measured stays last.
        measured = {
            name: row["previous_token"]
            for name, row in zip(names, atlas.rows, strict=True)
            if row["previous_token"] is not None
        }
        down = sorted(measured, key=measured.get, reverse=True)
        button = page.get_by_role("button", name="previous token")
        button.click()
        assert listed(page)[: len(down)] == down
        assert page.locator('th[aria-sort="descending"]').count() == 1
        meaning = page.locator("#column-meaning")
        assert "the token before" in meaning.text_content()
        assert meaning.evaluate("shown => getComputedStyle(shown).position") == "static"
        button.click()
        assert listed(page)[: len(down)] == down[::-1]
        absent = page.locator("#listed tbody tr").last.locator("td").nth(NUMBER - 1)
        assert len(down) < len(names)
        assert "not measured" in absent.text_content()

        # Search, role, minimum.
        page.locator("#search").fill("5.1")
        assert listed(page) == []
        page.locator("#search").fill("L3H1")
        assert listed(page) == ["3.1"]
        page.locator("#search").fill("induction")
        named = [n for n, r in zip(names, atlas.rows, strict=True) if r["role"] == "induction"]
        assert sorted(listed(page)) == named
        assert page.locator(".head-cell.dim").count() == len(names) - len(named)
        page.locator("#search").fill("")
        page.locator("#of-role").select_option("resting")
        page.locator("#least-column").select_option(label="resting")
        page.locator("#least").fill("25")
        kept = {
            n
            for n, r in zip(names, atlas.rows, strict=True)
            if r["role"] == "resting" and (r["resting"] or 0) >= 0.25
        }
        assert set(listed(page)) == kept
        assert 0 < len(kept) < len(names)
        page.reload()  # what was chosen stands in the address
        assert set(listed(page)) == kept
        axe(page)
        assert all(fits(page, width) for width in (390, 1280, 1440))

        # A head by the keyboard; its lists, and the arcs of what it moves.
        cell = page.locator(".head-cell").first
        cell.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/L1H1/index.html")
        assert "Head 1.1 of made-up-35" in page.locator(".says").text_content()
        for name, text in SHOWN.items():
            assert page.locator(f"dd[data-column={name}]").text_content() == text
        given = atlas.details(1, 1)["examples"]
        for name in ("received", "effect", "deciles", "sample", "moved"):
            page.locator(f"#lists [value={name}]").click()
            assert page.locator(".example").count() == len(given[name])
        assert SCRIPT in page.locator("#list").text_content()
        assert page.locator("img").count() == 0
        page.locator("#list .arcs path").first.wait_for(state="attached")
        numbers = page.locator("#list .links samp").all_text_contents()
        page.locator("#entries [value=moved]").press("Enter")
        assert page.locator("#list .links samp").all_text_contents() != numbers
        axe(page)
        assert all(fits(page, width) for width in (390, 1280, 1440))
        page.locator("a[rel=next]").click()
        page.wait_for_url("**/L1H2/index.html")
        page.get_by_role("link", name="All heads").click()
        page.wait_for_url("**/index.html")
        assert len(listed(page)) == len(names)
    assert complaints == []


@pytest.mark.thorough
def test_all_that_is_written_can_be_read_in_the_dark(pages, index):
    with pages(viewport={"width": 1280, "height": 720}, color_scheme="dark") as page:
        for name in ("index.html", "L2H3/index.html"):
            page.goto(index.replace("index.html", name))
            page.locator("html[data-theme=dark] .says").wait_for()
            axe(page)


@pytest.mark.thorough
def test_in_firefox(firefox, index):
    firefox.goto(index)
    firefox.wait_for(f"document.querySelectorAll('#listed tbody tr').length === {LAYERS * HEADS}")
    colour = "getComputedStyle(document.body).backgroundColor"
    assert firefox.evaluate(colour) != "rgba(0, 0, 0, 0)"  # the style was let in
    firefox.fill("#search", "3.1")
    firefox.wait_for("document.querySelectorAll('#listed tbody tr').length === 1")
    firefox.click("#listed tbody a")
    firefox.wait_for("document.querySelectorAll('.example .arcs path').length > 0")
    firefox.click("#lists [value=received]")
    firefox.wait_for("document.querySelectorAll('.token.key').length === 3")
