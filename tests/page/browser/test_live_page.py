"""A live report in a browser: from a file, without a network, and with all that takes a model."""

import pytest

import regard
from regard.gpt.checkpoint import SHIPPED
from regard.lens.view_names import VIEWS
from regard.page import ModelSubject
from regard.page._changes import Ablation

TEXT = "A green parrot lived in the tent. Leila said to Tom"
OTHER = "Back came the same words, back came"
OFF = Ablation(kind="off", layer=1, head=3)


@pytest.fixture(scope="module")
def server(shipped):
    """What a server answers of the same model and text."""
    return ModelSubject(*shipped, title="the model", text=TEXT)


@pytest.fixture(scope="module")
def file(shipped, tmp_path_factory):
    model, tokenizer = shipped
    path = tmp_path_factory.mktemp("live") / "live.html"
    size = regard.report(
        model, path, title="the model", tokenizer=tokenizer, text=TEXT, live=True, start="l=1&h=3"
    )
    weights = (SHIPPED / "model.safetensors").stat().st_size
    assert path.stat().st_size == size < weights + 1_100_000
    return path.as_uri()


@pytest.fixture(scope="module")
def opened(pages, settled, file):
    """The page, opened once; whatever it asks for or complains about fails the tests."""
    complaints = []
    with pages(viewport={"width": 1440, "height": 900}, offline=True) as page:
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))

        def on_request(request):
            if not request.url.startswith((file, "data:", "blob:")):
                complaints.append(f"asks {request.url}")

        page.on("request", on_request)
        page.goto(file)
        page.locator("#tokens .token").first.wait_for()
        yield settled(page)
    assert complaints == []


@pytest.fixture
def page(opened, settled):
    """The page with the text that it opens with."""
    write(opened, settled, TEXT)
    return opened


def write(page, settled, text, side=""):
    """Open a text in place of the one that is shown."""
    if not page.locator(f"#entry{side}").is_visible():
        page.locator(f"#edit{side}").click()
    page.locator(f"#entry-text{side}").fill(text)
    page.locator(f"#entry-run{side}").click()
    page.locator(f"#entry{side}").wait_for(state="hidden")
    settled(page)


def read(page, name="#tokens"):
    return "".join(page.locator(f"{name} .token").all_text_contents())


def expected(page):
    """The labels of the next tokens."""
    return page.locator("#predictions .name").evaluate_all(
        "(all) => all.map((one) => one.lastChild.textContent)"
    )


def shown_weight(page):
    return float(page.locator("#cross dd.strong").first.get_attribute("title"))


def look_at(page, settled, layer, head, query, key):
    page.evaluate(f"location.hash = '#l={layer}&h={head}&q={query}&k={key}'")
    settled(page)


def likeliest(run, count=3):
    return [piece.replace(" ", "␣") for _, piece, _ in run.following[:count]]


@pytest.mark.thorough
def test_the_tour_within_a_page_stays_where_it_is_seen(pages, file, tmp_path):
    style = "position: absolute; left: 0; top: 300px; width: 390px; height: 800px; border: 0"
    outer = tmp_path / "outer.html"
    outer.write_text(f'<iframe style="{style}" src="{file}#p=opening&amp;tour=1"></iframe>')
    with pages(viewport={"width": 390, "height": 844}, offline=True) as page:
        page.goto(outer.as_uri())
        card = page.frame_locator("iframe").locator("#tour-card")
        card.wait_for()
        card.locator(".main").click()  # it can be reached only where it is in sight
        assert card.locator("h2").inner_text() == "Where it looked"
        assert page.evaluate("scrollY") == 0


def test_a_text_is_typed_in_at_once_where_the_address_says_so(pages, settled, file):
    with pages(viewport={"width": 1280, "height": 720}, offline=True) as page:
        page.goto(f"{file}#p=opening&type=1")
        page.locator("#tokens .token").first.wait_for()
        field = settled(page).locator("#entry-text")
        assert field.input_value() == TEXT
        answers = expected(page)
        field.fill(OTHER)
        settled(page)
        assert read(page) == OTHER
        assert expected(page) != answers
        page.locator("#examples button").first.click()
        assert read(settled(page)) == field.input_value() != OTHER


def test_a_new_text_a_token_more_and_tokens_drawn(page, settled, server):
    run = server.read(OTHER)
    write(page, settled, OTHER)
    assert read(page) == OTHER
    assert expected(page)[:3] == likeliest(run)
    query = len(run.tokens) - 1
    page.locator("#tokens .token").last.click()
    settled(page)
    strongest = int(run.row(1, 3, query).argmax())
    assert shown_weight(page) == pytest.approx(float(run.row(1, 3, query)[strongest]), abs=1e-4)
    page.locator("#predictions button").first.click()
    settled(page)
    longer = server.append(run, run.following[0][0])
    assert read(page) == longer.text
    assert expected(page)[:3] == likeliest(longer)
    page.locator("#generate-tokens").fill("6")
    page.locator("#generate").click()
    page.locator("#generate", has_text="Generate").wait_for()
    settled(page)
    assert page.locator("#tokens .token").count() == query + 1 + 1 + 6
    assert read(page).startswith(longer.text)


@pytest.mark.thorough
def test_what_is_typed_is_followed_key_by_key(page, settled, server):
    page.locator("#edit").click()
    page.locator("#entry-text").fill(OTHER[:-5])
    settled(page)
    page.locator("#entry-text").press_sequentially(OTHER[-5:])
    settled(page)
    assert read(page) == OTHER
    assert expected(page)[:3] == likeliest(server.read(OTHER))
    assert page.locator("#entry").is_visible()
    page.locator("#entry-cancel").click()
    settled(page)
    assert read(page) == TEXT


def test_a_head_switched_off_undone_and_compared(page, settled, server):
    plain = server.run(server.about()["runs"][0])
    changed = server.change(plain, [OFF])
    place = (3, 1, 9, 4)
    page.locator("#grid .cell[data-layer='1'][data-head='3']").click()
    page.locator("#switch").click()
    settled(page)
    before, after = (run.probabilities[plain.following[0][0]] for run in (plain, changed))
    figures = page.locator("#effect").text_content()
    assert figures.startswith("With head 1·3 switched off, ")
    page.locator("#tokens .token").nth(place[2]).click()
    settled(page)  # or what this click moves may be under the next one
    page.locator("#grid .cell[data-layer='3'][data-head='1']").click()
    settled(page)
    row = changed.row(*place[:3])
    assert shown_weight(page) == pytest.approx(float(row.max()), abs=1e-4)
    assert abs(float(row.max() - plain.row(*place[:3]).max())) > 1e-3  # the change is seen there
    page.locator("#beside").click()
    settled(page)
    assert page.locator("#map-second canvas").first.is_visible()
    both = [float(one) for one in page.locator("#cross dd.strong").evaluate_all(TITLES)]
    assert both[0] == pytest.approx(float(plain.row(*place[:3]).max()), abs=1e-4)
    assert float(before) != float(after)
    page.locator("#beside").click()
    page.locator("#undo").click()
    settled(page)
    assert page.locator("#chips button").count() == 0
    assert shown_weight(page) == pytest.approx(float(plain.row(*place[:3]).max()), abs=1e-4)


@pytest.mark.thorough
def test_the_switch_shows_what_the_server_shows(page, settled, server):
    run = server.run(server.about()["runs"][0])
    place = (1, 3, 9)
    look_at(page, settled, *place, 0)
    for view in ("toward", "weight"):
        page.locator(f"#shows-choice button[value={view}]").click()
        page.locator("#shows-meaning", has_text=VIEWS[view].meaning[:20]).wait_for()
        settled(page)
        entry = float(run.seen(view).row(*place)[0])
        assert shown_weight(page) == pytest.approx(entry, abs=1e-4), view
    assert page.locator("#shows-choice button:enabled").count() == len(VIEWS)


TITLES = "(all) => all.map((one) => one.title)"


@pytest.mark.thorough
def test_what_matters_here(page, settled, finding, server):
    table = {
        over: server.effects(server.run(server.about()["runs"][0]), over, lambda *_: None)
        for over in ("heads", "keys")
    }
    page.locator("#matters").click()
    page.locator("#matters", has_text="Hide").wait_for()
    settled(page)
    plain = server.run(server.about()["runs"][0])
    assert page.locator("#finding").text_content() == finding(plain, **table)
    page.locator("#matters").click()


@pytest.mark.thorough
def test_two_texts_side_by_side(page, settled):
    page.locator("#compare").select_option("text")
    settled(page)
    write(page, settled, OTHER, side="-second")
    assert (read(page), read(page, "#tokens-second")) == (TEXT, OTHER)
    page.locator("#compare").select_option("off")
    settled(page)


@pytest.mark.thorough
def test_in_firefox(firefox, file):
    firefox.goto(file)
    firefox.wait_for("document.documentElement.dataset.settled === 'true'")
    firefox.click("#edit")
    firefox.fill("#entry-text", OTHER)
    firefox.click("#entry-run")
    firefox.wait_for("document.querySelector('#entry').hidden")
    firefox.wait_for("document.documentElement.dataset.settled === 'true'")
    text = "[...document.querySelectorAll('#tokens .token')].map((one) => one.textContent).join('')"
    assert firefox.evaluate(text) == OTHER
    many = "document.querySelectorAll('#predictions button:enabled').length"
    assert firefox.evaluate(many) == 10


@pytest.mark.thorough
def test_back_takes_texts_back(page, settled):
    """A text typed key by key is one step, as is one of several tokens that were drawn."""
    write(page, settled, OTHER)
    assert read(page) == OTHER
    page.locator("#predictions button").first.click()
    settled(page)
    longer = read(page)
    assert len(longer) > len(OTHER)
    page.locator("#generate-tokens").fill("9")
    page.locator("#generate").click()
    page.locator("#generate", has_text="Generate").wait_for()
    settled(page)
    assert len(read(page)) > len(longer)
    page.locator("#edit").click()
    page.locator("#entry-text").fill("A hen")
    page.locator("#entry-text").press_sequentially(" sat")
    page.locator("#entry-run").click()
    settled(page)
    assert read(page) == "A hen sat"
    page.go_back()
    settled(page)
    assert len(read(page)) > len(longer)
    for text in (longer, OTHER, TEXT):
        page.go_back()
        settled(page)
        assert read(page) == text


@pytest.mark.thorough
def test_back_takes_a_text_back_that_was_typed_faster_than_it_was_read(page, settled):
    write(page, settled, OTHER)
    page.locator("#edit").click()
    page.locator("#entry-text").evaluate(
        """field => {
            for (field.value of ["A", "A hen"]) field.dispatchEvent(new InputEvent("input"));
        }"""
    )
    settled(page)
    assert read(page) == "A hen"
    page.go_back()
    settled(page)
    assert read(page) == OTHER
