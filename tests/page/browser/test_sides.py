"""What a side shows: one head, a mean of heads, or a text of its own beside another."""

from threading import Event
from urllib.parse import parse_qsl

import pytest
import torch

from regard.page._windows import Window

pytestmark = pytest.mark.thorough

QUERY, KEY = 9, 4
SECOND = "another text, and another"


def facts(page):
    """What stands beside the map: the words, and the numbers in full."""
    return page.locator("#cross dl").evaluate_all(
        """(lists) => lists.map((list) => [...list.querySelectorAll("dt")].map((dt) =>
          [dt.textContent, dt.nextSibling.textContent, dt.nextSibling.title]))"""
    )


def pixels(page, canvas):
    return page.locator(canvas).evaluate("(one) => one.toDataURL()")


def state(page):
    return dict(parse_qsl(page.evaluate("location.hash.slice(1)")))


@pytest.fixture
def run(model):
    return model.run(model.about()["runs"][0])


@pytest.mark.parametrize(
    ("choice", "place"), [("layer", (1, "mean")), ("model", ("mean", "mean"))], ids=str
)
def test_a_mean_is_shown_everywhere(show, settled, written, model, run, choice, place):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}")
    head = pixels(page, "#map-first canvas")
    page.locator(f"#average [value='{choice}']").click()
    settled(page)
    cell = run.cell(*place, QUERY, KEY)
    # The crosshair: its mean weight, exactly, and no score.
    mean, score = facts(page)[0][2:]
    assert mean[:2] == ["mean", written(cell["weight"])]
    assert float(mean[2]) == pytest.approx(cell["weight"], abs=1e-6)
    assert score[:2] == ["score", "–"]
    # The map: its picture, its title and its name.
    assert pixels(page, "#map-first canvas") != head
    assert page.get_by_label("Head", exact=True).input_value() == "mean"
    many = 5 if choice == "layer" else 20
    assert f"the mean of the {many} heads" in page.locator("#map-first .about").text_content()
    name = "Layer 1 · mean" if choice == "layer" else "All layers · mean"
    assert name in page.locator("#map-first canvas").get_attribute("aria-label")
    # The card: the mean's own small picture.
    assert page.locator("#head-card strong").text_content() == name
    assert page.locator("#head-card canvas").evaluate("(one) => one.width") == len(run.tokens)
    # Heads that take part are marked, and the steps say that they are one head's.
    assert page.locator("#grid [aria-pressed=true]").count() == many
    assert "These are the steps of layer 1, head 1" in page.locator(".steps-of").text_content()
    # The readouts are those of the mean pattern.
    page.keyboard.press("t")
    settled(page)
    top = run.row(*place, QUERY).topk(3)
    rows = page.locator("#readouts tr[data-key]")
    assert rows.first.locator("td").last.text_content() == written(float(top.values[0]))
    keys = rows.evaluate_all("(all) => all.map((r) => +r.dataset.key)")
    assert keys[:3] == top.indices.tolist()
    assert state(page).items() >= {"a": choice, "b": "readouts"}.items()
    # A head in the grid takes its place again.
    page.locator("#grid .cell").nth(2).click()
    settled(page)
    assert page.locator("#head-card strong").text_content().startswith("Layer 0 · Head 2")
    # Its shares have bars as long as they are; entropy and distance have none.
    bars = page.locator("#head-card dd").evaluate_all(
        "(all) => all.map((one) => one.style.getPropertyValue('--share'))"
    )
    scores = run.scores(0)["heads"][2]
    shares = [scores[f"{name}_token"] for name in ("previous", "first", "current")]
    assert [float(one) for one in bars[:3]] == pytest.approx(shares, abs=1e-6)
    assert bars[-2:] == ["", ""]
    assert state(page).items() >= {"l": "0", "h": "2"}.items()
    assert "a" not in state(page)


def exported(page, what):
    page.locator("#export summary").click()
    with page.expect_download() as actual:
        page.locator(f"[data-export={what}]").click()
    return actual.value.suggested_filename, actual.value.path().read_text("utf-8").splitlines()


def test_the_numbers_of_a_mean_map_are_exported(show, model, run):
    page = show(model, "#l=1&h=1&a=layer&z=4,2,12")
    assert page.locator("#zoom-note").text_content().startswith("queries 4–15")
    name, (_, *lines) = exported(page, "map-csv")
    assert name == "regard-map-layer1-headmean.csv"
    cells = torch.tensor([[float(number) for number in line.split(",")] for line in lines])
    wanted = run.map(1, "mean", Window((4, 16), (2, 14), 1), Event()).float()
    torch.testing.assert_close(cells[:, 4].view(12, 12), wanted, rtol=1e-5, atol=1e-7)
    assert cells[0, :4].tolist() == [4, 4, 2, 2]


def test_a_head_is_compared_with_its_layers_mean(show, settled, written, model, run):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}&x=head&o=1,1,layer")
    actual = {name: full for name, _, full in facts(page)[0]}
    for name, head in (("weight left", 1), ("mean right", "mean")):
        weight = run.cell(1, head, QUERY, KEY)["weight"]
        assert float(actual[name]) == pytest.approx(weight, abs=1e-6)
    # The text is shaded by the head of the map that was used last.
    page.locator("#map-second canvas").click(position={"x": 5, "y": 5})
    settled(page)
    most = written(float(run.row(1, "mean", QUERY).max()))
    assert page.locator("#legend samp").first.text_content() == f"≤ {most}"
    assert state(page).items() >= {"v": "second", "o": "1,1,layer"}.items()


def test_each_of_two_texts_has_its_own_tokens_heads_and_place(show, settled, model):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}")
    page.locator("#compare").select_option("text")
    settled(page)
    page.locator("#edit-second").click()
    page.get_by_label("Text to compare with").fill(SECOND)
    page.locator("#entry-run-second").click()
    page.locator("#entry-second").wait_for(state="hidden")
    settled(page)
    other = model.read(SECOND)
    first = model.run(model.about()["runs"][0])
    tokens = page.locator("#tokens-second .token")
    assert tokens.count() == len(other.tokens)
    assert page.locator("#tokens .token").count() == len(first.tokens)
    # Its own query and key, chosen in its text; the first keeps its own.
    tokens.nth(5).click()
    tokens.nth(1).click(modifiers=["Shift"])
    settled(page)
    places = {"q": str(QUERY), "k": str(KEY), "q2": "5", "k2": "1", "v": "second", "t2": SECOND}
    assert state(page).items() >= places.items()
    left, right = facts(page)
    expected = [first.cell(1, 1, QUERY, KEY)["weight"], other.cell(1, 1, 5, 1)["weight"]]
    assert [float(side[2][2]) for side in (left, right)] == pytest.approx(expected, abs=1e-6)
    assert (left[0][0], left[0][1].split()[0]) == ("left query", str(QUERY))
    assert (right[0][0], right[0][1].split()[0]) == ("right query", "5")
    assert page.locator("#tab-panel-title").text_content().startswith("of query 5")
    assert "6 visible keys" in page.locator("#steps .sum").text_content()
    # Its own shading: what its query attends to.
    most = int(other.row(1, 1, 5).argmax())
    assert tokens.nth(most).evaluate("(one) => one.style.backgroundColor") != ""
    # Its own heads, named by what they do on it.
    scores = [one for layer in range(4) for one in other.scores(layer)["heads"]]
    names = [f"{one['role']}\n{one['evidence']}" for one in scores]
    cells = page.locator("#grid-second .cell")
    titles = cells.evaluate_all("(all) => all.map((one) => one.title.split(': ')[1])")
    assert titles == names
    # Hovering one text leaves the other where it is.
    page.locator("#tokens .token[data-at='2']").hover()
    settled(page)
    assert page.locator("#tokens .token.query").get_attribute("data-at") == "2"
    assert page.locator("#tokens-second .token.query").get_attribute("data-at") == "5"
    cells.nth(7).click()
    settled(page)
    assert state(page).items() >= {"l": "1", "h": "2"}.items()
    # What the model expects next is that of the text used last, and goes on it.
    assert "second" in page.locator("#predictions-of").text_content()
    page.locator("#predictions button").first.click()
    settled(page)
    assert tokens.count() == len(other.tokens) + 1
    assert page.locator("#tokens .token").count() == len(first.tokens)
    page.mouse.move(2, 2)
    settled(page)
    assert state(page)["t2"] != SECOND
    again = show(model, page.evaluate("location.hash"))
    title = again.locator("#tab-panel-title").text_content()
    assert title.startswith("of query 5 ")
    assert "right" in title
    assert again.locator("#tokens-second .token").count() == len(other.tokens) + 1
    assert state(again) == state(page)
