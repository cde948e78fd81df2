"""The pages in a browser: read from a file, by key, on a phone, in the dark."""

import json

import pytest

KINDS = ["index.html", "02-weights-from-the-data.html", "04-why-divide-by-the-root-of-d.html"]
KINDS += ["05-causal-mask.html", "readme.html", "learn.html", "00-why-look-back.html"]
KINDS += ["01-averaging.html", "03-one-head.html", "07-many-heads.html"]  # the path of one hour
KINDS += [
    "questions.html",
    "reference/regard.steps.html",
    "gallery/forming.html",
    "gallery/long-map.html",
]


@pytest.mark.parametrize(
    ("scheme", "width", "rules", "addresses"),
    [
        ("light", 1440, None, KINDS[:1]),
        pytest.param("light", 1440, None, KINDS[1:], marks=pytest.mark.thorough),
        pytest.param("light", 390, None, KINDS, marks=pytest.mark.thorough),
        pytest.param("dark", 1440, ["color-contrast"], KINDS, marks=pytest.mark.thorough),
    ],
)
def test_axe_finds_nothing(show, site, scheme, width, rules, addresses):
    from axe_playwright_python.sync_playwright import Axe

    page = show(KINDS[0], width=width, color_scheme=scheme, reduced_motion="reduce")
    for address in addresses:
        page.goto(f"{site.as_uri()}/{address}")
        assert page.locator("html").get_attribute("data-theme") == scheme
        # A file may not read its style sheets, and needs not: they have no rules on orientation.
        axe = Axe().run(page, options={"preload": False} | ({"runOnly": rules} if rules else {}))
        assert axe.violations_count == 0, f"{address}: {axe.generate_report()}"


def test_nothing_is_wider_than_a_phone_and_its_menu_opens(show, site):
    page = show(KINDS[0], width=390, has_touch=True)
    for address in KINDS:
        page.goto(f"{site.as_uri()}/{address}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, address
    page.goto(f"{site.as_uri()}/05-causal-mask.html")
    # The steps of a query are played in sight, and their buttons stand in one row.
    on, play = (page.get_by_role("button", name=name) for name in ("one step on", "play its steps"))
    assert on.bounding_box()["y"] == play.bounding_box()["y"]
    assert page.get_by_label("query of sunny, 0").input_value() == "0.4300"
    on.tap()
    cell, foot = (
        page.locator(".widget td.now").bounding_box(),
        page.locator(".follow").bounding_box(),
    )
    assert 60 < cell["y"] < cell["y"] + cell["height"] < foot["y"]
    chosen = page.locator("#pages [aria-current=page]")
    assert not chosen.is_visible()
    page.locator("#menu").tap()
    assert chosen.inner_text() == "5 · The causal mask"
    page.locator("#pages a", has_text="6 · Dropout").tap()
    page.wait_for_url("**/06-dropout.html")


def test_search_finds_a_section_by_key(show):
    page = show("reference/regard.steps.html")
    page.keyboard.press("/")
    page.keyboard.type("nn merge heads")
    first = page.locator("#results [role=option]").first
    first.wait_for()
    assert first.get_attribute("aria-selected") == "true"
    assert first.inner_text().startswith("regard.nn.merge_heads")
    assert first.locator("mark").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/reference/regard.nn.html#regard.nn.merge_heads")
    page.keyboard.press("Control+k")
    page.keyboard.type("qqzzxxy")
    page.locator("#count", has_text="0 places").wait_for()
    page.keyboard.press("Escape")
    assert not page.locator("#search").is_visible()


def test_colours_are_chosen_and_kept(show):
    page = show(KINDS[1], color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.locator("a[rel=next]").click()
    page.wait_for_url("**/03-one-head.html")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_what_is_copied_is_what_one_types(show):
    page = show("05-causal-mask.html", permissions=["clipboard-read", "clipboard-write"])
    block = page.locator(".code", has_text="visible = regard.causal()")
    block.hover()
    block.locator("button").click()
    block.locator("button", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.splitlines() == ["visible = regard.causal().visible(6, 6)", "visible.int()"]


def test_a_change_moves_all_that_follows_and_a_query_is_followed(show):
    page = show("02-weights-from-the-data.html", width=1100)
    widget = page.locator(".widget")
    context = widget.locator("[data-name=context] tbody td")
    before = context.all_inner_texts()
    widget.get_by_label("x of day, 1").fill("2")
    changed = widget.locator("[data-name=context] td.changed")
    assert changed.count() == 18
    assert all(now != was for now, was in zip(context.all_inner_texts(), before, strict=True))
    # Only what holds row 3 has changed among the scores.
    assert widget.locator("[data-name=scores] td.changed").count() == 11
    widget.get_by_role("button", name="the page’s numbers").click()
    assert context.all_inner_texts() == before

    widget.get_by_role("button", name="one step on").click()
    said = widget.locator(".sentence")
    terms = "0.5500 · 0.4300 + 0.8700 · 0.1500 + 0.6600 · 0.8900 = 0.9544"
    assert said.inner_text() == f"Score of “warm” and “the”: {terms}"
    assert not widget.locator("[data-name=context] tr.query td").first.is_visible()
    widget.get_by_role("button", name="causal mask").click()
    assert widget.locator("[data-name=weights] tbody tr").first.inner_text().split() == [
        *("the", "1.000", "0.000", "0.000", "0.000", "0.000", "0.000")
    ]


@pytest.mark.thorough
def test_an_answer_is_checked_in_the_page(show):
    page = show("05-causal-mask.html", width=390, height=844)
    exercise = page.locator("#exercise-5-3")
    answer, said = exercise.get_by_label("Your answer: 3 numbers"), exercise.locator("output")
    for text, words in {
        "0.5 1/2, 0": "Right.",
        "1 0 0": "Not it: itself hidden. A query sees its own position too: j ≤ i.",
        "1 1 1": "Not it.",
        "1/2 1/2": "Expected 3 numbers.",
        "half": "Write numbers with spaces between, such as 0.5 or 1/2.",
    }.items():
        answer.fill(text)
        assert not said.is_visible()
        answer.press("Enter")
        assert said.inner_text() == words
    choice = page.locator("#exercise-5-2")
    choice.get_by_label("Your answer").select_option("nothing")
    choice.get_by_role("button", name="Check").click()
    assert choice.locator("output").inner_text().startswith("Not it: a score of 0 taken for")
    solution = page.locator("#exercise-5-5 .solution")
    assert not solution.locator("pre").is_visible()
    solution.locator("summary").click()
    assert "def causal_mask(length):" in solution.locator("pre").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # At its foot, and at the two exercises that ask for a function.
    assert page.get_by_role("link", name="This page as a notebook").count() == 3
    assert "regard check" not in choice.inner_text()
    assert "regard check 5.5 my.py" in page.locator("#exercise-5-5").inner_text()


def test_progress_is_kept_in_this_browser_until_it_is_forgotten(show, site):
    page = show("05-causal-mask.html")
    tick = page.locator("#pages [aria-current] .tick")
    for exercise in json.loads(page.evaluate(EXPECTED)):
        assert not tick.is_visible()
        field = page.locator(f"#{exercise['field']}")
        if exercise["choice"]:
            field.select_option(exercise["right"])
        else:
            field.fill(exercise["right"])
        field.locator("xpath=..").get_by_role("button").click()
    assert tick.is_visible()  # all that can be answered on the page is right
    assert page.get_by_label("I have read this page").is_checked()
    page.get_by_role("link", name="many heads", exact=True).click()  # the path leads on
    page.wait_for_url("**/07-many-heads.html")
    page.get_by_label("I have read this page").check()

    page.goto(f"{site.as_uri()}/learn.html")
    progress = page.locator("div.progress")
    assert progress.inner_text().startswith("2 of 21 pages read, 5 exercises answered here.")
    checked = page.locator(".hour + .table input").evaluate_all(
        "(all) => all.map((one) => one.checked)"
    )
    assert checked == [False, False, True, False, False]
    assert page.locator("td .tick:visible").count() == 2
    page.get_by_role("button", name="Forget my progress").click()
    page.reload()
    assert page.locator(".tick:visible, :checked").count() == 0
    assert page.evaluate("localStorage.getItem('regard-progress')") is None


# The fields of a page and what is right in them.
EXPECTED = """JSON.stringify([...document.querySelectorAll("form.answer")].map((form) => {
  const field = form.querySelector("input, select");
  const { expected } = JSON.parse(form.dataset.answer);
  const isChoice = field.tagName === "SELECT";
  return { field: field.id, choice: isChoice, right: isChoice ? expected : expected.join(" ") };
}))"""


def test_page_0_is_read_without_code_on_a_phone(show):
    page = show("00-why-look-back.html", width=390, height=844)
    for block in page.locator("article pre").all():
        assert not block.is_visible()
    assert page.locator(".asks").inner_text().endswith("?")
    frame = page.locator("article iframe")
    frame.scroll_into_view_if_needed()
    assert frame.get_attribute("src").startswith("live.html#p=opening&tour=1&t=Anna+had")
    assert 300 < frame.bounding_box()["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.thorough
def test_a_map_is_flown_over_by_key_and_training_is_played(show, site):
    page = show("gallery/long-map.html", width=1100)
    field = page.locator(".field")
    field.focus()
    at = page.locator(".viewer .note")
    assert "queries from 0 down, keys from 0 to the right" in at.inner_text()
    for key in ("+", "+", "ArrowDown"):
        page.keyboard.press(key)
    at.filter(has_text="pixels a token").wait_for()
    shown = {name.rsplit("/", 2)[-2] for name in images(field)}
    assert shown == {"0", "1", "2"}  # the coarse tiles stay below the fine ones
    page.keyboard.press("0")
    at.filter(has_text="queries from 0 down").wait_for()

    page.goto(f"{site.as_uri()}/gallery/forming.html")
    page.locator("input[type=range]").fill("0")
    assert page.locator("output").inner_text() == "1"
    assert page.locator("figcaption").all_inner_texts() == ["one", "two"]
    plots = page.locator(".viewer svg")
    assert plots.locator("text:first-child").all_text_contents() == ["a loss", "more"]
    page.locator(".forming figure").nth(1).hover()
    assert (
        plots.locator("path.marked").evaluate_all(
            "(all) => all.map((one) => one.getAttribute('d'))"
        )
        == ["M0.0,150.0L360.0,75.0L720.0,90.0"] * 2
    )
    page.get_by_role("button", name="play").click()
    page.locator("output", has_text="3").wait_for()
    page.get_by_role("button", name="play").wait_for()


def images(field):
    return field.locator("img").evaluate_all("(all) => all.map((one) => one.src)")


@pytest.mark.thorough
def test_firefox_goes_the_main_path(firefox, site):
    firefox.goto(f"{site.as_uri()}/index.html")
    firefox.click(".door a")
    firefox.wait_for("location.pathname.endsWith('/learn.html')")
    firefox.goto(f"{site.as_uri()}/02-weights-from-the-data.html")
    changed = "document.querySelectorAll('[data-name=context] td.changed').length"
    assert firefox.evaluate(changed) == 0
    firefox.fill('[aria-label="x of day, 1"]', "2")
    firefox.wait_for(f"{changed} === 18")
    firefox.click("#search-open")
    firefox.fill("#query", "nn merge heads")
    firefox.wait_for(
        "document.querySelector('#results a')?.textContent.includes('regard.nn.merge_heads')"
    )
    firefox.goto(f"{site.as_uri()}/04-why-divide-by-the-root-of-d.html")
    assert firefox.evaluate("document.querySelector('math').getBoundingClientRect().height > 20")
