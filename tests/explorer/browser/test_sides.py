"""What a side shows: one head, a mean of heads, or a text of its own beside another."""

import re
from threading import Event

import pytest
import torch

QUERY, KEY = 9, 4
SECOND = "another text, and another"


def written(weight):
    """As format.js writes a weight."""
    return "0.999+" if weight >= 0.9995 else f"{weight:.3f}"


def facts(page):
    """What stands beside the map: the words, and the numbers in full."""
    return page.locator("#cross dl").evaluate_all(
        """(lists) => lists.map((list) => [...list.querySelectorAll("dt")].map((dt) =>
          [dt.textContent, dt.nextSibling.textContent, dt.nextSibling.title]))"""
    )


def pixels(page, canvas):
    return page.locator(canvas).evaluate("(one) => one.toDataURL()")


def state(page):
    return dict(part.split("=", 1) for part in page.url.split("#")[1].split("&"))


def until_address(page, **fields):
    page.wait_for_function(
        """(wanted) => {
          const found = new URLSearchParams(location.hash.slice(1));
          return Object.entries(wanted).every(([name, value]) => found.get(name) === value);
        }""",
        arg=fields,
    )


@pytest.fixture
def run(model):
    return model.run(model.about()["runs"][0])


@pytest.mark.parametrize(
    ("choice", "place"), [("layer", (1, "mean")), ("model", ("mean", "mean"))], ids=str
)
def test_a_mean_is_shown_everywhere(show, model, run, choice, place):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}")
    page.locator("#cross dt", has_text="weight").wait_for()
    page.locator("#map-first .stale").wait_for(state="hidden")
    head = pixels(page, "#map-first canvas")
    page.locator(f"#average [value='{choice}']").click()
    cell = run.cell(*place, QUERY, KEY)
    # The crosshair: its mean weight, exactly, and no score.
    page.locator("#cross dt", has_text="mean").wait_for()
    page.wait_for_function(
        """(wanted) => Math.abs(document.querySelector("#cross .strong").title - wanted) < 1e-6""",
        arg=cell["weight"],
    )
    assert [fact[:2] for fact in facts(page)[0]][2:] == [
        ["mean", written(cell["weight"])],
        ["score", "–"],
    ]
    # The map: its picture, its title and its name.
    page.wait_for_function(
        "(old) => document.querySelector('#map-first canvas').toDataURL() !== old", arg=head
    )
    assert page.get_by_label("Head", exact=True).input_value() == "mean"
    many = 4 if choice == "layer" else 16
    page.locator("#map-first .about", has_text=f"the mean of the {many} heads").wait_for()
    name = "Layer 1 · mean" if choice == "layer" else "All layers · mean"
    assert name in page.locator("#map-first canvas").get_attribute("aria-label")
    # The card: the mean's own small picture.
    page.locator("#card strong", has_text=name).wait_for()
    side = len(run.tokens)
    page.wait_for_function(
        "(side) => document.querySelector('#card canvas').width === side", arg=side
    )
    # Heads that take part are marked, and the steps say that they are one head's.
    assert page.locator("#grid [aria-pressed=true]").count() == many
    page.locator(".steps-of", has_text="These are the steps of layer 1, head 1").wait_for()
    # The readouts are those of the mean pattern.
    page.keyboard.press("t")
    top = run.row(*place, QUERY).topk(3)
    page.locator(
        "#readouts tr[data-key] td:last-child", has_text=written(float(top.values[0]))
    ).first.wait_for()
    keys = page.locator("#readouts tr[data-key]").evaluate_all(
        "(all) => all.map((r) => +r.dataset.key)"
    )
    assert keys[:3] == top.indices.tolist()
    until_address(page, a=choice, b="readouts")
    # A head in the grid takes its place again.
    page.locator("#grid .cell").nth(2).click()
    page.locator("#card strong", has_text="Layer 0 · Head 2").wait_for()
    until_address(page, l="0", h="2")
    assert "a" not in state(page)


def exported(page, what):
    page.locator("#export summary").click()
    with page.expect_download() as found:
        page.locator(f"[data-export={what}]").click()
    return found.value.suggested_filename, found.value.path().read_text("utf-8").splitlines()


def test_the_numbers_of_a_mean_map_are_exported(show, model, run):
    page = show(model, "#l=1&h=1&a=layer&z=4,2,12")
    page.locator("#map-first .stale").wait_for(state="hidden")
    page.wait_for_function(
        "() => document.querySelector('#zoom-note').textContent.startsWith('queries 4–15')"
    )
    page.locator("#cross dt", has_text="query").wait_for()
    name, (_, *lines) = exported(page, "map-csv")
    assert name == "regard-map-layer1-headmean.csv"
    cells = torch.tensor([[float(number) for number in line.split(",")] for line in lines])
    wanted = run.map(1, "mean", (4, 16), (2, 14), 1, Event()).float()
    torch.testing.assert_close(cells[:, 4].view(12, 12), wanted, rtol=1e-5, atol=1e-7)
    assert cells[0, :4].tolist() == [4, 4, 2, 2]


def test_a_head_is_compared_with_its_layers_mean(show, model, run):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}&x=head&o=1,1,layer")
    page.locator("#cross dt", has_text="mean right").wait_for()
    values = {
        "weight left": run.cell(1, 1, QUERY, KEY)["weight"],
        "mean right": run.cell(1, "mean", QUERY, KEY)["weight"],
    }
    for name, value in values.items():
        page.wait_for_function(
            """([name, value]) => [...document.querySelectorAll("#cross dt")].some((dt) =>
              dt.textContent === name && Math.abs(dt.nextSibling.title - value) < 1e-6)""",
            arg=[name, value],
        )
    # The text is shaded by the head of the map that was used last.
    page.locator("#map-second canvas").click(position={"x": 5, "y": 5})
    most = float(run.row(1, "mean", QUERY).max())
    page.locator("#legend samp", has_text=written(most)).first.wait_for()
    until_address(page, v="second", o="1,1,layer")


def test_each_of_two_texts_has_its_own_tokens_heads_and_place(show, model):
    page = show(model, f"#l=1&h=1&q={QUERY}&k={KEY}")
    page.locator("#compare").select_option("text")
    page.locator("#tokens-second .token").first.wait_for()
    page.locator("#edit-second").click()
    page.get_by_label("Text to compare with").fill(SECOND)
    page.locator("#entry-run-second").click()
    page.locator("#entry-second").wait_for(state="hidden")
    other = model.read(SECOND)
    first = model.run(model.about()["runs"][0])
    tokens = page.locator("#tokens-second .token")
    assert tokens.count() == len(other.tokens)
    assert page.locator("#tokens .token").count() == len(first.tokens)
    # Its own query and key, chosen in its text; the first keeps its own.
    tokens.nth(5).click()
    tokens.nth(1).click(modifiers=["Shift"])
    until_address(page, q=str(QUERY), k=str(KEY), q2="5", k2="1", v="second", t2=SECOND)
    expected = [first.cell(1, 1, QUERY, KEY)["weight"], other.cell(1, 1, 5, 1)["weight"]]
    page.wait_for_function(
        """(wanted) => [...document.querySelectorAll("#cross .strong")].every((dd, k) =>
          Math.abs(dd.title - wanted[k]) < 1e-6)""",
        arg=expected,
    )
    left, right = facts(page)
    assert (left[0][0], left[0][1].split()[0]) == ("left query", str(QUERY))
    assert (right[0][0], right[0][1].split()[0]) == ("right query", "5")
    page.locator("#band-title", has_text="of query 5").wait_for()
    page.locator("#steps .sum", has_text="6 visible keys").wait_for()
    # Its own shading: what its query attends to.
    most = int(other.row(1, 1, 5).argmax())
    page.wait_for_function(
        """(at) => document.querySelector(`#tokens-second [data-at='${at}']`)
          .style.backgroundColor !== ''""",
        arg=most,
    )
    # Its own heads, named by what they do on it.
    names = [one["name"] for layer in range(4) for one in other.scores(layer)["heads"]]
    page.wait_for_function(
        """(names) => [...document.querySelectorAll("#grid-second .cell")].map((cell) =>
          cell.title.split(": ")[1] ?? "").join() === names.join()""",
        arg=names,
    )
    # Hovering one text leaves the other where it is.
    page.locator("#tokens .token[data-at='2']").hover()
    page.locator("#tokens .token.query[data-at='2']").wait_for()
    assert page.locator("#tokens-second .token.query").get_attribute("data-at") == "5"
    page.locator("#grid-second .cell").nth(6).click()
    until_address(page, l="1", h="2")
    # What the model expects next is that of the text used last, and goes on it.
    page.locator("#next-of", has_text="second").wait_for()
    page.locator("#next button").first.click()
    page.wait_for_function(
        "(many) => document.querySelectorAll('#tokens-second .token').length === many",
        arg=len(other.tokens) + 1,
    )
    assert page.locator("#tokens .token").count() == len(first.tokens)
    page.mouse.move(2, 2)
    page.wait_for_function("() => document.querySelector('#busy').textContent === ''")
    page.wait_for_function(
        "(old) => new URLSearchParams(location.hash.slice(1)).get('t2') !== old", arg=SECOND
    )
    again = show(model, "#" + page.url.split("#")[1])
    again.locator("#tokens-second .token").first.wait_for()
    again.locator("#band-title", has_text=re.compile("of query 5 .*right")).wait_for()
    assert again.locator("#tokens-second .token").count() == len(other.tokens) + 1
    assert state(again) == state(page)
