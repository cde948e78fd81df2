"""The switch of the views: map, arcs, pictures, numbers and sentences follow it."""

import pytest
import torch

from regard.gpt import GPT, GPTConfig
from regard.lens.view_names import VIEWS
from regard.page import RecordingSubject
from regard.page.subjects import ModelSubject

TEXT = "Tom had a kite and Ella had a drum. Tom lost the"

ARCS = """() => [...document.querySelectorAll(".arcs path")].map((one) =>
  [Number(one.dataset.key), one.classList.contains("less")])"""
PICTURES = """() => ["#map-first canvas", "#grid .cell canvas"].map((name) =>
  document.querySelector(name).toDataURL())"""


@pytest.fixture(scope="module")
def teller(shipped):
    return ModelSubject(*shipped, title="the model", text=TEXT)


def plain(text):
    return text.translate({0x2068: "", 0x2069: ""}).replace("−", "-")


def test_all_of_the_page_follows_the_switch(show, settled, teller):
    run = teller.run(teller.about()["runs"][0])
    last = len(run.tokens) - 1
    page = show(teller, "#p=opening&l=1&h=2")
    seen = {"weight": page.evaluate(PICTURES)}
    for view in ("moved", "toward"):
        page.locator(f"#shows-choice button[value={view}]").click()
        page.locator("#shows-meaning", has_text=VIEWS[view].meaning[:20]).wait_for()
        settled(page)
        seen[view] = page.evaluate(PICTURES)
        row = run.seen(view).row(1, 2, last)
        key = int(row.abs().argmax())
        sizes = row.abs() / row.abs().max()
        drawn = page.evaluate(ARCS)
        expected = sizes.argsort(descending=True).tolist()
        expected = [k for k in expected if k != last and sizes[k] >= 0.02][:12]
        assert drawn == [[k, bool(row[k] < 0)] for k in expected]
        number = float(plain(page.locator("#cross dd.strong").text_content()))
        assert number == pytest.approx(float(row[key]), rel=0.01)
        five = plain(page.locator(".five [data-number=value] b").text_content())
        assert float(five) == pytest.approx(float(row[key]), rel=0.01)
        does = "adds" if row[key] > 0 else "takes"
        verb = {"moved": "moves most from", "toward": f"{does} most"}[view]
        assert f"head 1·2 {verb}" in plain(page.locator("#sentence").text_content())
        low = plain(page.locator("#scale").get_attribute("aria-label"))
        assert ("from -" in low) == (view == "toward")
    for which in range(2):
        assert len({pictures[which] for pictures in seen.values()}) == 3
    assert "y=toward" in page.evaluate("location.hash")


def test_a_view_that_cannot_be_had_is_disabled_with_the_reason(show, make_recording):
    given = [tuple(torch.randn(2, 1, 3, 11, 5).unbind())]
    subject = RecordingSubject(make_recording(given), title="a recording")
    # A browser complains of a 409, with which a question is answered that a newer one replaced.
    page = show(subject, "#l=0&h=1&y=moved", offline=True)
    why = {one["name"]: one["objection"] for one in subject.run("0").describe_views()}
    for name in ("moved", "toward"):
        button = page.locator(f"#shows-choice button[value={name}]")
        assert button.is_disabled()
        assert button.get_attribute("title") == why[name]
    # What the address asks for and can't be had is said, not taken for the weight.
    assert page.locator("#shows-choice [aria-checked=true]").text_content() == "weight"
    assert why["moved"] in page.locator("#problem").text_content()
    page.locator("#shows-choice button[value=without]").click()
    page.locator("#shows-choice [aria-checked=true]", has_text="without the sink").wait_for()


@pytest.mark.thorough
def test_the_opening_of_many_heads_names_the_one_that_writes(show, shipped, in_words):
    _, tokenizer = shipped
    torch.manual_seed(0)
    shape = {"layers": 5, "heads": 13, "dim": 52, "context": 31}
    model = GPT(GPTConfig(vocab_size=tokenizer.vocab_size, **shape)).eval()
    subject = ModelSubject(model, tokenizer, title="many heads", text=TEXT)
    run = subject.run(subject.about()["runs"][0])
    by = subject.writer(run)
    page = show(subject, "")
    sentence, aside = (plain(page.locator(at).text_content()) for at in ("#sentence", "#aside"))
    name = f"ead {by['layer']}·{by['head']}"
    source = run.tokens[by["source"]].strip()
    assert run.following[0][2] < 0.5  # so the model does not know
    assert by["decides"] == (f"{name} adds most to it, from “{source}”." in sentence)
    assert by["decides"] != ("No single head decides it." in sentence)
    assert by["decides"] != (f"Most is added by h{name}, from “{source}”: it adds" in aside)
    verb = "falls" if by["loss"] > 0 else "rises"
    assert f"with it switched off, the log-probability {verb} by {abs(by['loss']):.2f}" in aside
    assert f"dds {by['share']:.1f} to a lead in logit of {by['margin']:.1f} over " in aside
