"""A report in a browser: from a file, without a network, with all parts of the page."""

import contextlib
import itertools
import re

import pytest
import torch

import regard
from regard.page import ModelSubject, RecordingSubject

pytestmark = pytest.mark.thorough

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<!--",
    "<b>bold</b>",
    "&lt;i&gt;",
    "\u202eevil",
    "\x00",
    "${alert(1)}",
]
LAYER, HEAD, QUERY, KEY = 1, 1, 9, 4


@pytest.fixture
def opened(pages, settled, tmp_path):
    """Write a report and open it; whatever it asks for or complains about fails the test."""
    with contextlib.ExitStack() as stack:
        complaints = []

        def go(subject, hash="", *, width=1440, scheme="light", **options):  # noqa: A002
            file = tmp_path / "report.html"
            regard.report(subject, file, **options)
            viewport = {"width": width, "height": 900}
            page = stack.enter_context(pages(viewport=viewport, color_scheme=scheme, offline=True))
            page.on(
                "console",
                lambda message: (
                    complaints.append(message.text) if message.type == "error" else None
                ),
            )
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))

            def on_request(request):
                if not request.url.startswith((file.as_uri(), "data:", "blob:")):
                    complaints.append(f"asks {request.url}")

            page.on("request", on_request)
            page.goto(file.as_uri() + hash)
            page.locator("#tokens .token").first.wait_for()
            return settled(page)

        yield go
    assert complaints == []


def fact(page, name):
    return page.locator("#cross dt", has_text=re.compile(f"^{name}$")).locator("+ dd")


def test_all_parts_are_there_and_nothing_that_takes_a_server(opened, settled, model):
    page = opened(model, start=f"l={LAYER}&h={HEAD}&q={QUERY}&k={KEY}")
    run = model.run(model.about()["runs"][0])
    assert page.locator("#tokens .token").count() == len(run.tokens)
    assert "largest error of any weight" in page.locator("#notes").text_content()
    drawn = """(canvas) => new Set(canvas.getContext("2d")
      .getImageData(0, 0, canvas.width, canvas.height).data).size"""
    assert f"layer {LAYER}, head {HEAD}" in page.locator("#tab-panel-title").text_content()
    assert page.locator("#steps tbody tr[data-key]").count() > 0
    many = sum(len(layer.heads) for layer in run.layers)
    assert page.locator('#grid .cell[title*=": "]').count() == many
    assert page.locator("#map-first canvas").first.evaluate(drawn) > 20
    assert page.locator("#grid .cell canvas").first.evaluate(drawn) > 5
    page.locator("#tab-readouts").click()
    assert settled(page).locator("#readouts tbody tr").count() > 0
    assert page.locator("#predictions button").count() > 0
    assert page.locator("#predictions button:enabled").count() == 0
    for name in ("#entry", "#edit", "#generate", "#offline", "#problem", "#acts", "#switch"):
        assert not page.locator(name).is_visible()
    assert "A report holds no model" in page.locator("#changes-none").text_content()
    assert page.title().endswith("regard report")


def test_a_weight_is_the_models_within_the_stated_error(opened, shipped, model):
    network, tokenizer = shipped
    run = model.run(model.about()["runs"][0])
    ids = torch.tensor(tokenizer.encode(run.text))
    calls = []
    attention = network.h[LAYER].attn
    hook = attention.register_forward_pre_hook(
        lambda _, args, options: calls.append((args[0], options["rotation"])), with_kwargs=True
    )
    with torch.no_grad():
        network(ids)
        query, key, _ = (part[HEAD].double() for part in attention.project(*calls[0]))
    hook.remove()
    scores = (query @ key.T / query.shape[-1] ** 0.5)[QUERY, : QUERY + 1]
    strongest = int(scores.argmax())
    exact = float(scores.softmax(-1)[strongest])
    page = opened(model, f"#l={LAYER}&h={HEAD}&q={QUERY}&k={strongest}")
    assert fact(page, "score").text_content() == f"{float(scores.max()):.3f}".replace("-", "−")
    error_bound = float(
        re.search(r"any weight is ([\d.]+)", page.locator("#notes").text_content())[1]
    )
    shown = float(fact(page, "weight").get_attribute("title"))
    assert 0 < error_bound < 1e-4
    # What is shown has few figures: half a unit of the last of four.
    assert shown == pytest.approx(exact, abs=error_bound, rel=5e-4)


def test_the_zoom_goes_to_weights_of_their_own(opened, settled, model):
    page = opened(model)
    note = page.locator("#zoom-note")
    assert note.text_content().startswith("all ")
    page.locator("#zoom-in").click()
    settled(page)
    assert note.text_content().startswith("queries ")
    assert "z=" in page.evaluate("location.hash")


def test_a_recording_of_two_sequences_and_no_values(opened, settled, padded):
    page = opened(RecordingSubject(padded.recording, title="mine"))
    assert page.locator("#tokens .token").last.text_content() == "a12"
    page.locator("#sequence").select_option("1")
    settled(page)
    assert page.locator("#tokens .token").last.text_content() == "b12"
    assert "values were not recorded" in page.locator("#steps .out").text_content()
    assert not page.locator("#predictions-panel").is_visible()


def test_tokens_are_text(opened, make_recording):
    query = torch.randn(1, 1, len(HOSTILE), 5)
    recording = make_recording([(query, query)], tokens=[HOSTILE])
    page = opened(RecordingSubject(recording, title="<img src=y onerror=alert(2)>"))
    assert page.locator("#tokens .token", has_text="<b>bold</b>").count() == 1
    assert page.locator("img, b b, #tokens img, #tokens b").count() == 0
    assert "<img src=y" in page.locator("#about").text_content()


def test_it_follows_the_preference_and_fits(opened, model, resize):
    page = opened(model, scheme="dark")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    for width, scheme in itertools.product([1440, 900], ["light", "dark"]):
        page.emulate_media(color_scheme=scheme)
        page.locator(f"html[data-theme={scheme}]").wait_for()
        resize(page, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_copy_of_the_address_opens_the_same_view(opened, shipped):
    subject = ModelSubject(*shipped, title="m", text="a list is a list")
    page = opened(subject, f"#l={LAYER}&h=2&q=3&c=linear&b=readouts")
    assert f"layer {LAYER}, head 2" in page.locator("#tab-panel-title").text_content()
    assert page.locator("#readouts tbody tr").count() > 0
    assert page.locator("#colour [value=linear]").get_attribute("aria-checked") == "true"
