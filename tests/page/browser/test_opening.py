"""The opening: a sentence made from the data, arcs in the text, a cell that opens."""

import math
import re

import pytest
import torch

from regard.gpt import GPT, BPETokenizer, GPTConfig
from regard.gpt.config import HAS_READ
from regard.page import RecordingSubject
from regard.page._changes import Ablation, KnockOut
from regard.page.example import EXAMPLES
from regard.page.subjects import ModelSubject

ARCS = """() => [...document.querySelectorAll(".arcs path")].map((one) =>
  [Number(one.dataset.key), Number(one.getAttribute("stroke-width"))])"""

HAIRLINES = """() => [...document.querySelectorAll(".hairlines g")].map((one) =>
  [...one.dataset.head.split("/").map(Number), Number(one.dataset.key)])"""

# Where a pointer meets one of the lines.
REACHED = """() => {
  for (const path of document.querySelectorAll(".hairlines .reach")) {
    const along = path.getPointAtLength(path.getTotalLength() / 2);
    const { x, y } = along.matrixTransform(path.getScreenCTM());
    if (document.elementFromPoint(x, y)?.matches(".reach")) return [x, y];
  }
}"""


LENGTH, AT_REST, ELSEWHERE = 23, 5, 7  # tokens; keys


# The words that a line of the text runs through: not those that it goes from and to.
CROSSED = """() => {
  const at = (word) => Number(word.closest(".token").dataset.at);
  const words = [...document.querySelectorAll("#tokens .word")];
  const query = at(document.querySelector("#tokens .query .word"));
  const crossed = [];
  for (const path of document.querySelectorAll(".arcs path, .hairlines .seen")) {
    const key = Number(path.dataset.key ?? path.parentNode.dataset.key);
    const length = path.getTotalLength();
    for (let k = 0; k <= 60; k++) {
      const point = path.getPointAtLength((k / 60) * length);
      const { x, y } = point.matrixTransform(path.getScreenCTM());
      for (const word of words)
        for (const box of word.getClientRects()) {
          const inside = x > box.left && x < box.right && y > box.top + 1 && y < box.bottom - 1;
          if (inside && ![query, key].includes(at(word))) crossed.push([key, word.textContent]);
        }
    }
  }
  return crossed;
}"""


def said(page, where="#sentence"):
    return page.locator(where).text_content().translate({0x2068: "", 0x2069: ""})


@pytest.fixture
def resting(make_recording):
    """Two layers of 37 heads that rest on two keys; the last query of one looks elsewhere, too."""
    weights = torch.full((74, LENGTH, LENGTH), 0.02)
    weights[..., 0] = 0.6
    weights[..., AT_REST] = 0.9
    weights[53, -1, ELSEWHERE] = 2
    weights /= weights.tril().sum(-1, keepdim=True)
    query = weights.log().view(2, 1, 37, LENGTH, LENGTH) * LENGTH**0.5
    key = torch.eye(LENGTH).expand(2, 1, 37, LENGTH, LENGTH)
    recording = make_recording(
        list(zip(query, key, strict=True)), tokens=[f" t{n}" for n in range(LENGTH)]
    )
    return RecordingSubject(recording, title="resting"), weights.tril()


@pytest.fixture(scope="module")
def teller(shipped):
    """The shipped model over its first example."""
    return ModelSubject(*shipped, title="the model")


def chosen(teller, run):
    """The head that the opening shows by definition: loss of the next token × weight far back.

    Not on a key on which the head rests, nor on white space. Where nothing notable is lost without
    any of these, it is the head without which most is.
    """
    effects = teller.effects(run, "heads", lambda *_: None)["effects"]
    worst = min(
        (effect, layer, at) for layer, row in enumerate(effects) for at, effect in enumerate(row)
    )
    best = (0.0, 0, 0)
    for layer, row in enumerate(effects):
        sinks = [one["sinks"] for one in run.scores(layer)["heads"]]
        for head, effect in enumerate(row):
            weights = run.row(layer, head, len(run.tokens) - 1)
            key = int(weights.argmax())
            is_far = key <= len(run.tokens) - 3 and run.tokens[key].strip()
            if is_far and key not in sinks[head] and weights[key] >= 0.3:
                loss = min(5.0, max(1e-6, -effect))
                is_copied = loss > 0.3 and run.tokens[key] == run.following[0][1]
                best = max(
                    best, (float(weights[key]) * loss * (4 if is_copied else 1), layer, head)
                )
    notable = best[0] and effects[best[1]][best[2]] < -0.3
    return best[1:] if notable or worst[0] > -0.3 else worst[1:]


def blank(piece):
    return {" ": "a space", "\n": "a line break"}.get(piece, piece.strip())


@pytest.fixture
def claim(in_words):
    """How the opening begins and ends, of a model's text and one of its heads."""

    def write(teller, run, layer, head):
        _, piece, p = run.following[0]
        known = f"Next comes {blank(piece)} (probability {in_words(p)})."
        unknown = "The model does not know what comes next: its likeliest, "
        unknown += f"{blank(piece)}, has probability {in_words(p)}."
        if not piece.strip():  # no head is asked for it
            return known if p >= 0.5 else unknown, "is not asked yet. Read past it"
        if p < 0.5:
            return f"{unknown} Head {layer}·{head} ", "."
        begins = f"To say {blank(piece)} (probability {in_words(p)}), head {layer}·{head} "
        off = f" With head {layer}·{head} switched off, "
        without = teller.change(run, [Ablation(kind="off", layer=layer, head=head)])
        _, winner, most = max(without.following, key=lambda one: one[2])
        left = float(without.probabilities[run.following[0][0]])
        if winner != piece:
            return begins, f"{off}the answer becomes {blank(winner)} ({in_words(most)})."
        if abs(p - left) >= 0.02:
            return (
                begins,
                f"{off}{blank(piece)} {'falls' if left < p else 'rises'} to {in_words(left)}.",
            )
        heads = teller.effects(run, "heads", lambda *_: None)
        least, worst = min(
            (p * math.exp(effect), f"{at}·{number}")
            for at, row in enumerate(heads["effects"])
            for number, effect in enumerate(row)
        )
        if p - least >= 0.02:
            ends = f"; with head {worst} switched off, {in_words(least)}."
            return begins, f"{off}{blank(piece)} keeps {in_words(left)}{ends}"
        ends = f"{blank(piece)} keeps {in_words(least)}{'' if least >= 0.995 else ' or more'}."
        return begins, f" No single head is needed: with any one switched off, {ends}"

    return write


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "Tom had a kite and Ella had a drum.\n\nTom",
        "The cat sat on the mat. The cat sat",
        "The capital of France is",
    ],
)
def test_what_the_opening_says_is_true_of_any_text(show, shipped, claim, text):
    subject = ModelSubject(*shipped, title="the model", text=text)
    sentence = said(show(subject, ""))
    run = subject.run(subject.about()["runs"][0])
    layer, head = map(int, re.search(r"[Hh]ead (\d)·(\d) ", sentence).groups())
    begins, ends = claim(subject, run, layer, head)
    assert sentence.startswith(begins)
    assert sentence.endswith(ends)
    assert not set("␣↵⁻⁴") & set(sentence)


@pytest.mark.thorough
def test_a_model_that_needs_no_head_is_not_said_to_change_without_one(show, in_words):
    tokenizer = BPETokenizer.train(["a b c d"], vocab_size=257)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, context=31, layers=2, heads=3, dim=24)).eval()
    with torch.no_grad():
        model.wte.weight.copy_(1.5 * torch.randn(257, 24))  # each token is its own likeliest next
        for name, parameter in model.named_parameters():
            if ".c_proj." in name:
                parameter.zero_()
            elif ".c_attn.weight" in name:
                parameter.mul_(20)  # heads that look somewhere
    subject = ModelSubject(model, tokenizer, title="sure of itself", text="a bc, bcd a cb")
    sentence = said(show(subject, ""))
    p = in_words(subject.run(subject.about()["runs"][0]).following[0][2])
    assert sentence.startswith(f"To say b (probability {p}), head ")
    needless = " No single head is needed: with any one switched off, b keeps "
    assert sentence.endswith(f"{needless}{p}{'' if p == 'over 0.99' else ' or more'}.")


@pytest.mark.thorough
def test_after_generating_the_head_is_chosen_anew(show, settled, teller, claim):
    page = show(teller, "")
    page.locator("#generate-heat").fill("0")
    page.locator("#generate-tokens").fill("11")
    page.locator("#generate").click()
    page.locator("#generate", has_text="Stop").wait_for()
    page.locator("#generate", has_text="Generate").wait_for()
    sentence = said(settled(page))
    run = teller.run(page.evaluate("history.state.run"))
    assert len(run.tokens) > len(teller.run(teller.about()["runs"][0]).tokens)
    layer, head = chosen(teller, run)
    begins, ends = claim(teller, run, layer, head)
    assert sentence.startswith(begins)
    assert sentence.endswith(ends)
    # A head that a person chose stays.
    page.locator("#grid .cell").nth(1).click()
    page.locator("#predictions button").first.click()
    settled(page)
    assert "ead 0·1 " in said(page)


@pytest.mark.thorough
def test_what_is_cut_is_not_said_to_be_looked_at(show, settled, teller, in_words):
    run = teller.run(teller.about()["runs"][0])
    last = len(run.tokens) - 1
    layer, head = chosen(teller, run)
    key = int(run.row(layer, head, last).argmax())
    page = show(teller, f"#p=opening&l={layer}&h={head}&e=cut.{layer}.{head}.all.{key}-{key + 1}")
    cut = KnockOut(kind="cut", layer=layer, head=head, queries=None, keys=(key, key + 1))
    changed = teller.change(run, [cut])
    _, winner, p = max(changed.following, key=lambda one: one[2])
    now = int(changed.row(layer, head, last).argmax())
    assert now != key
    word = f"token {key} “{run.tokens[key].strip()}”"
    lead = f"With {word} cut in head {layer}·{head}, the model "
    sentence = said(page)
    knows = f"says {winner.strip()} (probability {in_words(p)}); head {layer}·{head} "
    assert sentence.startswith(lead + (knows if p >= 0.5 else "does not know what comes next"))
    looked = sentence.rpartition(f"ead {layer}·{head} ")[2]
    if changed.row(layer, head, last)[now] >= 0.1:
        assert run.tokens[now].strip() in looked
    else:
        assert looked.startswith("looks everywhere")
    # Switched off, it is said to be so, and to look nowhere.
    page.locator("#undo").click()
    page.locator("#switch").click()
    sentence = said(settled(page))
    assert sentence.startswith(f"With head {layer}·{head} switched off, the model ")
    assert f"head {layer}·{head} " not in sentence.removeprefix(f"With head {layer}·{head} ")


def test_the_opening_says_what_the_next_token_hangs_on(show, settled, teller, claim, in_words):
    page = show(teller, "")
    run = teller.run(teller.about()["runs"][0])
    last = len(run.tokens) - 1
    layer, head = chosen(teller, run)
    row = run.row(layer, head, last)
    key = int(row.argmax())
    assert page.locator("#has-read").text_content() == HAS_READ
    sentence = said(page)
    begins, ends = claim(teller, run, layer, head)
    assert sentence.startswith(begins)
    assert sentence.endswith(ends)
    assert f"“{run.tokens[key].strip()}”" in sentence
    # What is likeliest with the head switched off stands beside what is so as it is.
    without = teller.change(run, [Ablation(kind="off", layer=layer, head=head)])
    _, winner, after = max(without.following, key=lambda one: one[2])
    likeliest = page.locator("#predictions button", has_text=winner.strip())
    assert f"{after:.3f}" in likeliest.text_content()
    # Bars under all heads say how much is lost with each switched off.
    assert page.locator("#grid .need").first.is_visible()
    # If more is lost without another, that is said too.
    effects = teller.effects(run, "heads", lambda *_: None)["effects"]
    least, at, number = min((e, at, k) for at, row in enumerate(effects) for k, e in enumerate(row))
    left, own = (run.following[0][2] * math.exp(e) for e in (least, effects[layer][head]))
    assert own - left >= 0.02, "else there is nothing to say"
    aside = said(page, "#aside")
    assert aside.startswith(f"More is lost with head {at}·{number} ")
    assert f" {in_words(left)} is left." in aside
    # Arcs go to the keys that have weight, as wide as that is, around the other words.
    assert page.evaluate(CROSSED) == []
    arcs = page.evaluate(ARCS)
    assert {at for at, _ in arcs} == {k for k, weight in enumerate(row) if weight >= 0.02} - {last}
    widths = [(width - 1) / float(row[at]) for at, width in arcs]
    assert widths == pytest.approx([widths[0]] * len(widths), rel=1e-4)
    # Of another token it tells the weight; the panel has the same state, and so has a link.
    page.locator("#tokens .token[data-at='7']").click()
    page.locator("#sentence", has_text="At ").wait_for()
    strongest = in_words(float(run.row(layer, head, 7).max()))
    assert settled(page).locator("#sentence em").last.text_content() == strongest
    page.keyboard.press("p")
    page.locator("#tab-panel-title", has_text="of query 7").wait_for()
    assert page.locator("#sentence, #examples, .arcs").all()[0].is_hidden()
    assert page.locator("#changes + #shows + main").count() == 1
    page.keyboard.press("p")
    again = show(teller, settled(page).evaluate("location.hash"))
    assert again.locator("#sentence em").last.text_content() == strongest


@pytest.mark.thorough
def test_a_thin_line_goes_to_the_strongest_key_of_each_other_head(show, settled, teller):
    page = show(teller, "#l=2&h=2&p=opening")
    run = teller.run(teller.about()["runs"][0])
    assert settled(page).locator(".hairlines g").count() > 3
    places = [(at, head) for at, layer in enumerate(run.layers) for head in layer.heads]
    for query in (len(run.tokens) - 1, 7):
        page.locator(f"#tokens .token[data-at='{query}']").click()
        settled(page)
        rows = {place: run.row(*place, query) for place in places if place != (2, 2)}
        looks = {place: int(row.argmax()) for place, row in rows.items() if row.max() >= 0.1}
        drawn = {(*place, key) for place, key in looks.items() if key != query}
        assert {tuple(one) for one in page.evaluate(HAIRLINES)} == drawn
        note = page.locator("#hairlines-note").text_content()
        assert note == f"Thin lines: where the {len(rows)} other heads look most."
    # The pointer names the head, and a click goes to it.
    page.mouse.move(*page.evaluate(REACHED))
    layer, head = page.locator(".hairlines .on").get_attribute("data-head").split("/")
    assert f"Head {layer}·{head}" in page.locator("#hairlines-note").text_content()
    page.mouse.down()
    page.mouse.up()
    page.wait_for_function("(place) => location.hash.includes(place)", arg=f"l={layer}&h={head}")
    assert settled(page).locator(f".hairlines g[data-head='{layer}/{head}']").count() == 0
    # Where the thumbnails do not hold every weight, the page says so.
    page.locator("#examples button").last.click()
    page.locator("#entry-text").fill("the cat sat, " * 20)
    page.locator("#entry-run").click()
    page.locator("#hairlines-note", has_text="up to 64 tokens").wait_for()
    assert settled(page).locator(".hairlines").count() == 0


@pytest.mark.thorough
def test_of_more_heads_than_are_switched_off_one_looks_where_the_others_do_not_rest(show, resting):
    subject, weights = resting
    assert (weights[:, 9, [0, AT_REST]] > 0.3).all()
    assert weights[53, -1].argmax() == ELSEWHERE
    page = show(subject, "")
    assert said(page) == (
        f"At “t{LENGTH - 1}” head 1·16 looks back at “t{ELSEWHERE}”, with weight "
        f"{weights[53, -1, ELSEWHERE]:.2f}."
    )
    rests = f"Of 74 heads, 74 rest on “t0” and 74 on “t{AT_REST}”."
    assert said(page, "#aside") == rests


@pytest.mark.thorough
def test_of_many_heads_those_of_the_chosen_layer_have_thin_lines(show, settled, make_recording):
    generator = torch.Generator().manual_seed(2)
    given = [tuple(5 * torch.randn(2, 1, 33, 11, 3, generator=generator)) for _ in range(2)]
    page = show(RecordingSubject(make_recording(given), title="many"), "#l=1&h=2&p=opening")
    note = settled(page).locator("#hairlines-note").text_content()
    assert note == "Thin lines: where the 32 other heads of layer 1 look most."
    places = page.evaluate(HAIRLINES)
    assert places
    assert all(layer == 1 and head != 2 for layer, head, _ in places)


# Of the model's shape: whether it is seen, how far it reaches over the chips, how much is cut off.
SHAPE = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  const [chips, about, shape] = ["#examples", "#about", "#about-shape"].map(box);
  const [over, cut] = [chips.right - shape.left, about.left - shape.left];
  return { seen: shape.top < about.bottom, over, cut };
}"""


@pytest.mark.thorough
def test_what_has_no_room_beside_the_chips_is_not_shown(show, settled, resize, teller):
    page = show(teller, "")
    seen = {}
    for width in (1600, 1440, 1300, 1181, 1180, 1000, 900):
        resize(page, width)
        shape = page.evaluate(SHAPE)
        seen[width] = shape["seen"]
        assert not shape["seen"] or (shape["over"] < 0 and shape["cut"] < 0.5), (width, shape)
    assert seen[1600]
    assert not seen[900]


@pytest.mark.thorough
def test_a_chip_opens_its_text_and_a_long_text_the_panel(show, settled, teller):
    page = show(teller, "")
    chips = page.locator("#examples button")
    assert chips.all_text_contents()[:-1] == [one["name"] for one in teller.about()["examples"]]
    chips.nth(3).click()
    page.locator("#tokens .token", has_text="Adam").first.wait_for()
    assert chips.nth(3).get_attribute("aria-pressed") == "true"
    assert settled(page).locator("body.opening").count() == 1
    chips.last.click()
    page.locator("#entry-text").fill("the cat sat, " * 60)
    page.locator("#entry-run").click()
    page.locator("body:not(.opening)").wait_for()
    assert settled(page).locator("#colour [aria-checked=true]").text_content() == "log"


@pytest.mark.thorough
def test_a_cell_that_is_zoomed_into_opens_into_its_steps(show, settled, teller):
    page = show(teller, "#l=2&h=2&p=opening")
    five = dict(
        page.locator(".five button").evaluate_all(
            "(all) => all.map((one) => [one.dataset.number, one.querySelector('b').textContent])"
        )
    )
    assert float(five["weight"]) == pytest.approx(
        math.exp(
            float(five["masked"])
            - float(page.locator(".five span").nth(3).text_content().split("− ")[1].rstrip(")"))
        ),
        rel=0.02,
    )
    page.locator("#zoom-cell").click()
    settled(page)
    queries, keys, span = map(
        float,
        re.search(r"z=([\d.,]+)", page.evaluate("decodeURIComponent(location.hash)"))
        .group(1)
        .split(","),
    )
    assert span == pytest.approx(1.12)
    query, key = page.locator("#cross dd").all_text_contents()[:2]
    assert queries - 1 < int(query.split()[0]) < queries + span
    assert keys - 1 < int(key.split()[0]) < keys + span
    page.keyboard.press("p")  # what is drawn is exported, too
    page.locator("#export summary").click()
    with page.expect_download() as actual:
        page.locator("[data-export=map-svg]").click()
    drawn = actual.value.path().read_text()
    for name in ("product", "scaled", "masked", "weight"):
        assert f">{five[name]}</text>" in drawn


@pytest.mark.thorough
@pytest.mark.parametrize("address", ["", "#p=panel"])
def test_above_the_text_stands_what_the_model_has_read(show, teller, network, address):
    page = show(teller, address)
    said = page.locator("#has-read")
    assert said.text_content() == HAS_READ
    assert said.bounding_box()["y"] < page.locator("#tokens").bounding_box()["y"]
    other = ModelSubject(*network, title="another")
    assert not show(other, address).locator("#has-read").is_visible()


def test_lines_go_around_the_words_of_a_phone_s_lines(show, shipped):
    subject = ModelSubject(*shipped, title="the model", text=EXAMPLES["copying"])
    page = show(subject, "#p=opening&l=2&h=2", width=390, height=844)
    ways = page.locator(".arcs path, .hairlines .seen")
    shapes = ways.evaluate_all("(all) => all.map((one) => one.getAttribute('d'))")
    assert any("V" in shape for shape in shapes), "some go past other lines of the text"
    assert page.evaluate(CROSSED) == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_words_say_what_they_mean_to_pointer_and_keyboard(show, teller):
    page = show(teller, "")
    head = page.locator("#sentence dfn", has_text="head")
    meaning = page.locator("#meaning")
    assert meaning.is_hidden()
    head.hover()
    assert "part of the model that looks back" in meaning.text_content()
    assert head.get_attribute("aria-describedby") == "meaning"
    page.keyboard.press("Escape")
    assert meaning.is_hidden()
    page.locator("#shows-meaning dfn", has_text="weight").focus()
    assert "add up to 1" in meaning.text_content()
    box, word = meaning.bounding_box(), page.locator("#shows-meaning dfn:focus").bounding_box()
    assert box["y"] >= word["y"] + word["height"]
    # What the text itself says is its own.
    said = page.locator("#sentence").evaluate(
        "(one) => one.querySelectorAll('em dfn, i dfn').length"
    )
    assert said == 0


def test_before_a_word_no_head_is_said_to_look_for_it(show, settled, shipped, in_words):
    subject = ModelSubject(*shipped, title="the model", text="Tom went home. He was glad.")
    page = show(subject, "")
    run = subject.run(subject.about()["runs"][0])
    _, piece, p = run.following[0]
    assert piece == "\n"
    assert said(page).startswith(
        f"Next comes a line break (probability {in_words(p)}). Which word "
    )
    assert not re.search(r"[Hh]ead \d", said(page))
    page.locator("#sentence button").click()
    page.locator("#tokens .token").nth(len(run.tokens)).wait_for()
    assert settled(page).locator("#tokens .token").count() == len(run.tokens) + 1
    page = show(ModelSubject(*shipped, title="the model", text="Tom"), "")
    assert said(page).endswith("With a single token there is nothing to look back at.")
