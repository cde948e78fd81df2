"""The parts of the page: text, heads, map, steps, readouts, next; their numbers are exact."""

import re
import urllib.request

import pytest
import torch

pytestmark = pytest.mark.thorough

QUERY = 9


def row(explorer, run, what="row", **fields):
    address = "&".join(f"{name}={value}" for name, value in fields.items())
    with urllib.request.urlopen(f"{explorer.url}api/runs/{run}/{what}?{address}") as answer:
        return torch.frombuffer(bytearray(answer.read()), dtype=torch.float32)


def fact(page, name):
    return page.locator("#cross dt", has_text=re.compile(f"^{name}$")).locator("+ dd")


def shaded(page):
    """How dark each token's background is, in percent."""
    return page.evaluate(
        """() => [...document.querySelectorAll("#tokens .token")].map((token) => {
          const colour = token.style.backgroundColor;
          const found = /([\\d.]+)%/.exec(colour) ?? /([\\d.]+)\\)$/.exec(colour);
          return found ? Number(found[1]) : 0;
        })"""
    )


@pytest.fixture
def page(show, model):
    return show(model, "#l=1&h=1")


@pytest.fixture
def run(model):
    return model.run(model.about()["runs"][0])


def test_hovering_a_token_shades_what_it_attends_to(page, run, settled, written):
    page.locator(f"#tokens .token[data-at='{QUERY}']").hover()
    settled(page)
    weights = run.row(1, 1, QUERY)
    assert page.locator("#legend samp").first.text_content() == f"≤ {written(float(weights.max()))}"
    depths = shaded(page)
    assert depths.index(max(depths)) == int(weights.argmax())
    assert all(depth == 0 for depth in depths[QUERY + 1 :])
    assert "query" in page.locator(f"#tokens [data-at='{QUERY}']").get_attribute("class")


def test_focus_on_a_token_does_as_hovering(page, run, settled, written):
    page.locator(f"#tokens .token[data-at='{QUERY + 1}']").focus()
    page.keyboard.press("ArrowLeft")
    page.locator(f"#tokens .token.query[data-at='{QUERY}']").wait_for()
    settled(page)
    most = written(float(run.row(1, 1, QUERY).max()))
    assert page.locator("#legend samp").first.text_content() == f"≤ {most}"
    page.keyboard.press("Enter")
    settled(page)
    title = page.locator("#tab-panel-title").text_content()
    assert title.startswith(f"of query {QUERY}")
    assert "kept" in title


@pytest.mark.parametrize(
    ("choice", "layer", "head"), [("layer", 1, "mean"), ("model", "mean", "mean")]
)
def test_means_are_shown_in_the_text(page, run, settled, written, choice, layer, head):
    page.locator(f"#average [value='{choice}']").click()
    page.locator(f"#tokens .token[data-at='{QUERY}']").hover()
    settled(page)
    most = written(float(run.row(layer, head, QUERY).max()))
    assert page.locator("#legend samp").first.text_content() == f"≤ {most}"


def test_the_pair_under_the_crosshair_has_its_weight_and_score(page, run, settled, written):
    page.locator(f"#tokens .token[data-at='{QUERY}']").click()
    page.locator("#tokens .token[data-at='5']").click(modifiers=["Shift"])
    settled(page)
    cell = run.cell(1, 1, QUERY, 5)
    score = f"{cell['score']:.3f}".replace("-", "−")
    assert fact(page, "score").text_content() == score
    assert fact(page, "weight").text_content() == written(cell["weight"])
    assert float(fact(page, "weight").get_attribute("title")) == pytest.approx(
        cell["weight"], abs=1e-6
    )


def test_the_grid_fills_with_all_heads_and_their_names(page, run):
    layers = len(run.layers)
    heads = len(run.layers[0].heads)
    assert page.locator("#grid .cell").count() == layers * heads
    scores = [entry for layer in range(layers) for entry in run.scores(layer)["heads"]]
    names = [f"{entry['role']}\n{entry['evidence']}" for entry in scores]
    titles = page.locator("#grid .cell").evaluate_all("(all) => all.map((one) => one.title)")
    assert [title.split(": ")[1] for title in titles] == names
    drawn = page.locator("#grid .cell canvas").evaluate_all(
        """(all) => all.map((one) => {
          const { data } = one.getContext("2d").getImageData(0, 0, one.width, one.height);
          return new Set(data).size;
        })"""
    )
    assert min(drawn) > 2


def test_heads_are_sorted_and_a_click_takes_one(page, run, settled):
    page.locator("#sort").select_option("entropy")
    scores = {
        (layer, entry["head"]): entry["entropy"]
        for layer in range(len(run.layers))
        for entry in run.scores(layer)["heads"]
    }
    order = sorted(scores, key=lambda name: -scores[name])
    settled(page)
    shown = page.locator("#grid .cell").evaluate_all(
        "(all) => all.map((c) => [Number(c.dataset.layer), Number(c.dataset.head)])"
    )
    assert [tuple(one) for one in shown] == order
    page.locator("#grid .cell").first.click()
    layer, head = order[0]
    settled(page)
    assert f"layer {layer}, head {head}" in page.locator("#tab-panel-title").text_content()
    assert page.locator("#grid .cell").first.get_attribute("aria-pressed") == "true"


def test_the_steps_add_up(page, run, settled):
    page.locator(f"#tokens .token[data-at='{QUERY}']").click()
    settled(page)
    assert f"sum over {QUERY + 1} visible keys" in page.locator("#steps .sum").text_content()
    steps = run.steps(1, 1, QUERY)
    rows = page.locator("#steps tr[data-key]")
    assert rows.count() == len(steps["keys"]) == QUERY + 1
    for at, one in enumerate(steps["keys"]):
        cells = rows.nth(at).locator("td").all_text_contents()
        assert cells[0].startswith(f"{one['position']} ")
        assert float(cells[1].replace("−", "-")) == pytest.approx(one["score"], abs=0.006)
        assert float(cells[2].replace("−", "-")) == pytest.approx(one["scaled"], abs=0.0006)
        assert float(rows.nth(at).locator("td").nth(-2).get_attribute("title")) == pytest.approx(
            one["weight"], abs=1e-7
        )
    # The last column multiplies one number of the values; its sum is that of the context.
    heading = page.locator("#steps th").last.text_content()
    followed = int(re.fullmatch(r"× v\[(\d+)\]", heading)[1])
    products = rows.locator("td:last-child").evaluate_all("(all) => all.map((td) => +td.title)")
    assert products == pytest.approx(
        [one["weight"] * one["value"][followed] for one in steps["keys"]], abs=1e-6
    )
    assert sum(products) == pytest.approx(steps["context"][followed], abs=1e-4)
    sums = page.locator("#steps .sum td")
    assert sums.nth(-2).text_content() == "1.000"
    context = f"{steps['context'][followed]:.3f}".replace("-", "−")
    assert sums.last.text_content() == context
    hidden = len(run.tokens) - QUERY - 1
    page.locator("#steps .rest", has_text=f"{hidden} keys hidden by the mask").wait_for()
    formula = page.locator("#steps p", has_text="context[").text_content()
    terms, result = formula.split(" = ")[1:]
    assert "×" in terms
    assert any(f"{abs(number):.3f}" == result.strip("−") for number in steps["context"])


def test_the_readouts_list_the_strongest_keys(page, run, settled, written):
    page.keyboard.press("t")
    page.locator(f"#tokens .token[data-at='{QUERY}']").click()
    settled(page)
    label = page.locator("#readouts table").get_attribute("aria-label")
    assert label == f"Strongest keys of query {QUERY}"
    top = run.row(1, 1, QUERY).topk(5)
    rows = page.locator("#readouts tr[data-key]")
    keys = rows.evaluate_all("(all) => all.map((one) => Number(one.dataset.key))")
    assert keys[:5] == top.indices.tolist()
    first = rows.first.locator("td").last.text_content()
    assert first == written(float(top.values[0]))


def test_a_click_on_a_next_token_appends_it(page, run, settled):
    following = run.describe()["next"]
    buttons = page.locator("#predictions button")
    assert buttons.count() == len(following)
    name = following[2]["label"]
    assert name in buttons.nth(2).text_content()
    length = len(run.tokens)
    buttons.nth(2).click()
    settled(page)
    assert f"{length + 1} tokens" in page.locator("#about").text_content()
    assert page.locator("#tokens .token").count() == length + 1
    last = page.locator("#tokens .token").last
    assert name in last.get_attribute("aria-label")


def test_generation_streams_and_grows_the_text(page, run, settled):
    length = len(run.tokens)
    page.locator("#generate-tokens").fill("9")
    page.locator("#generate").click()
    settled(page)
    assert f"{length + 9} tokens" in page.locator("#about").text_content()
    assert page.locator("#generate").text_content() == "Generate"
    assert page.locator("#tokens .token").count() == length + 9
    assert page.locator("#tokens .ghost").count() == 0


def test_generation_can_be_stopped(page, run, settled):
    page.locator("#generate-tokens").fill("200")
    page.locator("#generate").click()
    page.locator("#generate", has_text="Stop").click()
    settled(page)
    assert page.locator("#generate").text_content() == "Generate"
    count = page.locator("#tokens .token").count()
    assert count < len(run.tokens) + 200
    assert page.locator("#tokens .token:not(.ghost)").count() == count


def test_a_new_text_is_read(page):
    page.locator("#edit").click()
    page.locator("#entry-text").fill("for i in range(3):\n    print(i)")
    page.locator("#entry-run").click()
    page.locator("#entry").wait_for(state="hidden")
    shown = "".join(page.locator("#tokens .token").all_text_contents()).replace("↵", "")
    assert "print(i)" in shown


# A recording of 16,384 tokens: the map


def oracle(query, key, at):
    scores = key[: at + 1].double() @ query[at].double() / query.shape[-1] ** 0.5
    return scores.softmax(0)


def test_the_map_of_a_long_recording_goes_down_to_a_single_weight(show, settled, long):
    subject, query, key = long
    at, to = 12007, 5003
    page = show(subject, f"#r=0&l=0&h=0&q={at}&k={to}")
    assert "16 384 tokens" in page.locator("#about").text_content()
    strong = page.locator("#cross .strong")
    weight = float(oracle(query, key, at)[to])
    assert float(strong.get_attribute("title")) == pytest.approx(weight, rel=1e-4)
    for _ in range(20):
        page.keyboard.press("+")
    settled(page)
    assert page.locator("#zoom-note").text_content().startswith("queries 12 0")
    box = page.locator("#map-first canvas").bounding_box()
    actual = {}
    for x, y in ((0.45, 0.3), (0.3, 0.5), (0.55, 0.6)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        settled(page)
        facts = page.locator("#cross dd").all_text_contents()
        q, k = int(facts[0].split()[0]), int(facts[1].split()[0])
        assert abs(q - at) <= 4
        assert abs(k - to) <= 4
        shown = float(strong.get_attribute("title"))
        assert shown == pytest.approx(float(oracle(query, key, q)[k]), rel=1e-4)
        actual[q, k] = shown
    assert len(actual) == 3


def test_the_map_is_dragged_and_zoomed_by_the_wheel(show, settled, long):
    page = show(long[0])
    note = page.locator("#zoom-note")
    assert "all 16 384" in note.text_content()
    box = page.locator("#map-first canvas").bounding_box()
    x, y = box["x"] + 0.4 * box["width"], box["y"] + 0.5 * box["height"]
    page.mouse.move(x, y)
    for _ in range(12):
        page.mouse.wheel(0, -300)
    note.filter(has_text="queries").wait_for()  # a wheel is answered before the page hears of it
    before = settled(page) and note.text_content()
    page.mouse.down()
    page.mouse.move(x - 90, y - 60, steps=5)
    page.mouse.up()
    settled(page)
    assert note.text_content() != before
    page.keyboard.press("0")
    settled(page)
    assert "all 16 384" in note.text_content()


def test_a_hidden_cell_is_called_hidden(show, long):
    page = show(long[0], "#r=0&q=100&k=9000")
    assert page.locator("#cross .strong").text_content() == "hidden"


def test_all_is_done_by_the_keyboard(show, settled, model):
    page = show(model, "#l=0&h=0&q=5&k=3")
    press = page.keyboard.press

    def state(*keys):
        """What the address says once these keys are pressed."""
        for key in keys:
            press(key)
        fields = settled(page).evaluate("location.hash.slice(1)")
        return dict(part.split("=", 1) for part in fields.split("&"))

    def at(now, names):
        return [now.get(name) for name in names]

    assert at(state(), "qk") == ["5", "3"]
    assert at(state("ArrowDown", "ArrowRight"), "qk") == ["6", "4"]
    assert at(state("]", "."), "lh") == ["1", "1"]
    assert at(state("[", ","), "lh") == ["0", "0"]
    assert at(state("l"), "c") == ["linear"]
    assert at(state("a"), "a") == ["layer"]
    assert at(state("t"), "b") == ["readouts"]
    assert at(state("h"), "w") == ["1"]
    assert "z" in state("h", "+")
    assert "z" not in state("Shift+ArrowRight", "0")
    assert at(state("Home"), "q") == ["0"]
    assert at(state("End"), "q") == [str(page.locator("#tokens .token").count() - 1)]
    assert not {"q", "k"} & set(state("Escape"))
    press("?")
    page.locator("dialog#keys[open]").wait_for()
    press("Escape")
    page.locator("dialog#keys").wait_for(state="hidden")
