"""Answers to requests that are no longer current are marked as stale, and dimmed."""

import contextlib
from threading import Event, Semaphore

import pytest
import torch

from regard.page import RecordingSubject
from regard.page._bands import readouts_along
from regard.page._run import Run
from regard.page.subjects import ModelSubject
from regard.pattern import Pattern

SEEN = "(one) => getComputedStyle(one).backgroundColor"
CLEAR = "rgba(0, 0, 0, 0)"
NONE_SHADED = f"""() => {{
  const tokens = Array.from(document.querySelectorAll("#tokens .token"));
  return tokens.length > 0 && tokens.every((one) => ({SEEN})(one) === "{CLEAR}");
}}"""
STRONGEST = "#tokens .token[data-at='{}']"


@contextlib.contextmanager
def held(page, *questions):
    """Keep the server's answers to some questions back for a while."""
    waiting = []
    patterns = [f"**/{question}*" for question in questions]
    for pattern in patterns:
        page.route(pattern, lambda route: waiting.append(route))  # noqa: PLW0108 - playwright marks its handlers
    yield
    for pattern in patterns:
        page.unroute(pattern)
    for route in waiting:
        with contextlib.suppress(Exception):  # a question that the page has called off
            route.continue_()


@pytest.fixture
def run(model):
    return model.run(model.about()["runs"][0])


@pytest.fixture
def page(show, model):
    """Without motion, which saves time: no test rests on it."""
    return show(model, "#l=1&h=1&q=9&k=3", reduced_motion="reduce")


@pytest.mark.parametrize(
    "ask", ["query", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("mean", "head"))]
)
def test_a_text_is_never_shaded_by_what_is_no_longer_asked(page, run, settled, written, ask):
    strongest = page.locator(STRONGEST.format(int(run.row(1, 1, 9).argmax())))
    legend = page.locator("#legend samp")
    assert strongest.evaluate(SEEN) != CLEAR
    assert all(legend.all_text_contents())
    query, place = 9, (1, 1)
    with held(page, "row", "column"):
        if ask == "query":
            query = 11
            page.locator(STRONGEST.format(query)).click()
        elif ask == "mean":
            place = (1, "mean")
            page.locator("#average [value=layer]").click()
        else:
            place = (1, 2)
            page.keyboard.press("]")
        page.locator("#tokens[data-state=stale]").wait_for()
        page.locator(STRONGEST.format(query) + ".query").wait_for()
        assert legend.all_text_contents() == ["", ""]
        page.wait_for_function(NONE_SHADED)
        assert page.locator("html").get_attribute("data-settled") == "false"
    settled(page)
    assert page.locator("#tokens").get_attribute("data-state") == "current"
    row = run.row(*place, query)
    assert page.locator(STRONGEST.format(int(row.argmax()))).evaluate(SEEN) != CLEAR
    assert legend.first.text_content() == f"≤ {written(float(row.max()))}"


DIMMED = """(part) => {
  const { dataset, firstElementChild } = document.querySelector(part);
  return dataset.state === "stale" && Number(getComputedStyle(firstElementChild).opacity) < 0.5;
}"""
CLEARLY_SEEN = """(part) => {
  const { dataset, firstElementChild } = document.querySelector(part);
  return dataset.state === "current" && Number(getComputedStyle(firstElementChild).opacity) === 1;
}"""


@pytest.mark.parametrize(
    ("tab", "question", "part"),
    [
        ("steps", "steps", "#steps"),
        pytest.param(
            *("readouts", "row", "#readouts .along > div:last-child"), marks=pytest.mark.thorough
        ),
        pytest.param("readouts", "readouts", "#readouts .plots", marks=pytest.mark.thorough),
    ],
)
def test_the_band_is_dimmed_until_its_numbers_have_come(page, settled, tab, question, part):
    if tab == "readouts":
        page.keyboard.press("t")
        settled(page)
    page.wait_for_function(CLEARLY_SEEN, arg=part)
    with held(page, question):
        page.keyboard.press("ArrowUp" if question != "readouts" else "]")
        page.wait_for_function(DIMMED, arg=part)
    settled(page)
    page.wait_for_function(CLEARLY_SEEN, arg=part)


@pytest.mark.thorough
def test_of_a_text_that_grows_all_that_is_of_the_shorter_one_is_dimmed(show, shipped, settled):
    subject = ModelSubject(*shipped, title="the model", text="the cat sat on the mat")
    page = show(subject, "#l=1&h=1&q=4&k=3", reduced_motion="reduce")
    parts = ["#map-first .field", "#map-first .chip", "#grid .cell", "#head-card", "#steps"]
    with held(page, "map", "heads", "thumbnails", "steps", "row", "column", "readouts"):
        page.locator("#predictions button").first.click()
        page.locator("#tokens .token.new").wait_for()
        for part in parts:
            page.locator(f"{part}[data-state=stale]").first.wait_for()
        page.locator("#export summary").click()
        page.locator("[data-export=map-png]").click()
        page.locator("#problem", has_text="still being computed").wait_for()
    settled(page)
    assert page.locator("[data-state=stale]").count() == 0


def test_a_question_that_is_asked_twice_is_answered(page, settled):
    score = page.locator("#cross dd").last
    with held(page, "cell"):
        with page.expect_request("**/cell*"):
            page.keyboard.press("]")
        with page.expect_request("**/cell*"):
            page.locator("#tokens .token.query").hover()
            page.mouse.move(2, 2)
        assert score.text_content() == "–"
    settled(page)
    assert score.text_content() != "–"


@pytest.mark.thorough
def test_an_answer_that_gave_way_to_an_older_question_is_asked_for_again(show, settled, model):
    """Questions go over several connections: one that was called off can be the last to come."""
    page = show(model, "#l=1&h=1&q=9&k=3", offline=True)  # a browser complains of a 409
    answers = iter([409])

    def overtaken(route):
        status = next(answers, None)
        route.continue_() if status is None else route.fulfill(status=status)

    page.route("**/cell*", overtaken)
    page.keyboard.press("]")
    assert settled(page).locator("#cross dd").last.text_content() != "–"


@pytest.mark.thorough
def test_progress_that_gave_way_to_an_older_question_is_asked_for_again(show, settled, long_mean):
    """Its lines then end early, with status 200."""
    page = show(long_mean, "#p=panel&b=readouts&q=4095")
    ends_early = iter([True])

    def overtaken(route):
        early = next(ends_early, False)
        route.fulfill(status=200, body="") if early else route.continue_()

    page.route("**/readouts/progress*", overtaken)
    with page.expect_response("**/readouts?*"):  # after the progress says that they are ready
        page.locator("#average [value=layer]").click()
    page.locator("#readouts .plots[data-state=current]").wait_for()
    assert not list(ends_early)
    settled(page)


@pytest.mark.thorough
def test_some_queries_stand_for_a_long_map_until_it_has_come(show, settled, long):
    page = show(long[0])
    note, drawn = (
        page.locator("#zoom-note"),
        "document.querySelector('#map-first canvas').toDataURL()",
    )
    whole = page.evaluate(drawn)
    with held(page, "api/runs/*/map"):
        page.reload()
        note.filter(has_text="a sketch from some queries").wait_for()
        page.wait_for_function(f"() => {drawn}.length > 5000")
        assert page.evaluate(drawn) != whole
    note.filter(has_text="a cell is the mean of").wait_for()
    assert settled(page).evaluate(drawn) == whole


@pytest.mark.thorough
def test_a_long_map_that_is_no_longer_looked_at_is_called_off_at_once(
    show, settled, long_mean, monkeypatch
):
    """Not only when that of the next head is requested: its sketch would have to wait for it."""
    begun, ended, average = Semaphore(0), Semaphore(0), Run._average

    def endless(self, places, window, cancelled):
        if len(places) > 1:
            begun.release()
            cancelled.wait()
            ended.release()
        return average(self, places, window, cancelled)

    page = show(long_mean, "#h=0")
    monkeypatch.setattr(Run, "_average", endless)
    page.locator("#average [value=layer]").click()
    maps = 2  # a small one stands beside the scores
    assert all(begun.acquire(timeout=30) for _ in range(maps))
    with held(page, "api/runs/*/sketch"):
        with page.expect_request("**/sketch?*head=1*"):
            page.locator("#grid .cell").nth(1).click()
        assert all(ended.acquire(timeout=30) for _ in range(maps))
        monkeypatch.setattr(Run, "_average", average)
    settled(page)


@pytest.mark.thorough
def test_a_long_map_that_fails_is_not_waited_for(show, settled, long):
    page = show(long[0], offline=True)  # a browser complains of a 503
    note, problem = page.locator("#zoom-note"), page.locator("#problem")
    page.route("**/map?*", lambda route: route.fulfill(status=503, json={"error": "Too much."}))
    page.reload()
    problem.filter(has_text="Too much.").wait_for()
    settled(page)  # the pictures of all heads have come
    assert note.text_content().endswith("; a sketch from some queries")
    assert page.locator("#map-first .stale").is_hidden()


@pytest.mark.thorough
def test_a_text_is_shaded_by_its_row_before_its_column_has_come(page, run, settled):
    """The column of a long text takes as long as its map."""
    legend = page.locator("#legend samp")
    with held(page, "column"):
        page.keyboard.press("]")
        page.locator("#tokens[data-state=current]").wait_for()
        strongest = page.locator(STRONGEST.format(int(run.row(1, 2, 9).argmax())))
        page.wait_for_function(
            f"(one) => ({SEEN})(one) !== '{CLEAR}'", arg=strongest.element_handle()
        )
        assert [bool(text) for text in legend.all_text_contents()] == [True, False]
    settled(page)
    assert all(legend.all_text_contents())


@pytest.fixture
def long_mean(make_recording):
    """Two heads over so many tokens that the page asks how far their mean's readouts are.

    Each test has its own: a run keeps the readouts of a mean that were computed.
    """
    query, key = torch.randn(2, 1, 2, 4096, 4, generator=torch.Generator().manual_seed(3))
    return RecordingSubject(make_recording([(query, key)]), title="two heads")


@pytest.mark.thorough
def test_readouts_of_a_long_mean_say_how_far_they_are_and_can_be_stopped(
    show, settled, long_mean, monkeypatch
):
    ended, whole = Event(), "regard.page._run.readouts_along"

    def endless(pattern, cancelled, progress):
        if isinstance(pattern, Pattern):
            return readouts_along(pattern, cancelled, progress)
        try:
            while True:
                progress(1024)
                cancelled.wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(whole, endless)
    page = show(long_mean, "#p=panel&b=readouts&q=4095")
    button, plots = page.locator("#readouts-progress"), page.locator("#readouts .plots")
    assert button.is_hidden()
    page.locator("#average [value=layer]").click()
    page.get_by_role("button", name="Stop the readouts (62 %)").wait_for()
    page.locator("#readouts .along > div:last-child[data-state=current]").wait_for()  # its row
    assert plots.get_attribute("data-state") == "stale"
    button.click()
    settled(page)
    assert ended.wait(30)
    assert button.text_content() == "Compute the readouts"
    page.locator("#tokens .token.query").hover()  # asks for nothing anew
    assert settled(page).locator("#problem").is_hidden()
    assert button.text_content() == "Compute the readouts"
    monkeypatch.setattr(whole, readouts_along)
    button.click()
    page.locator("#readouts .plots[data-state=current]").wait_for()
    assert settled(page).locator("#readouts-progress").is_hidden()
