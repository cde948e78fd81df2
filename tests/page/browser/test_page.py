"""The page as a whole: its address, exports, what others wrote, a server that ends, its looks."""

import csv
import io
import itertools
import re
import struct
import xml.etree.ElementTree as ET

import pytest
import torch

from regard.page import Explorer, RecordingSubject
from regard.page.subjects import ModelSubject

pytestmark = pytest.mark.thorough

INJECTED = [
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "\u202egnirts\u202c שלום",
    "😀 👩‍👩‍👧",
    "a\n\nb\tc",
    "${window.hacked=1}{{7*7}}",
    "\"'`;--=cmd()",
]


def seen(page):
    return {
        "tokens": page.locator("#tokens .token").all_text_contents(),
        "cross": page.locator("#cross").text_content(),
        "panel": page.locator("#tab-panel-title").text_content(),
        "note": page.locator("#zoom-note").text_content(),
        "sort": page.locator("#sort").input_value(),
        "colour": page.locator("#colour [aria-checked=true]").text_content(),
        "average": page.locator("#average [aria-checked=true]").text_content(),
        "tab": page.locator("[role=tab][aria-selected=true]").text_content(),
        "hash": page.evaluate("location.hash.slice(1)"),
    }


def test_an_address_that_is_shared_brings_the_page_back(show, settled, model):
    page = show(model)
    page.locator("#edit").click()
    page.locator("#entry-text").fill("the cat & the #1 dog? 100% sure + <b>")
    page.locator("#entry-run").click()
    page.locator("#entry").wait_for(state="hidden")
    settled(page)
    page.locator("#tokens .token[data-at='7']").click()
    page.locator("#tokens .token[data-at='2']").click(modifiers=["Shift"])
    for key in ("]", ".", "l", "a", "t", "+", "+"):
        page.keyboard.press(key)
    page.locator("#sort").select_option("distance")
    page.mouse.move(2, 2)
    settled(page)
    before = seen(page)
    assert seen(show(model, "#" + before["hash"])) == before


@pytest.mark.parametrize(
    "hash", ["#l=99&h=-1&q=x&z=nan,1,2&c=evil&t2=", "#%", "#t=&r=../..&z=0,0,-5", "#r=none"]
)
def test_an_address_that_makes_no_sense_opens_the_page(show, model, hash):  # noqa: A002
    page = show(model, hash)
    assert page.locator("#tokens .token").count() > 3


def download(page, what):
    page.locator("#export summary").click()
    with page.expect_download() as actual:
        page.locator(f"[data-export={what}]").click()
    return actual.value.suggested_filename, actual.value.path().read_bytes()


def test_pictures_are_exported(show, model):
    page = show(model, "#l=1&h=1&q=9&k=3")
    for what in ("map", "heads"):
        name, data = download(page, f"{what}-png")
        assert name.endswith(".png")
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        assert min(width, height) > 100
        name, data = download(page, f"{what}-svg")
        assert name.endswith(".svg")
        root = ET.fromstring(data)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert {one.tag.rpartition("}")[2] for one in root.iter()} & {"image", "rect", "path"}
        assert not [
            one for one in root.iter() if one.tag.rpartition("}")[2] in {"script", "foreignObject"}
        ]
        for one in root.iter():
            for attribute, value in one.attrib.items():
                assert not attribute.startswith("on")
                if attribute.endswith("href"):
                    assert value.startswith("data:image/png")


def table(data):
    return list(csv.DictReader(io.StringIO(data.decode())))


def test_numbers_are_exported(show, model):
    run = model.run(model.about()["runs"][0])
    page = show(model, "#l=1&h=2&q=9")
    name, data = download(page, "row-csv")
    assert name == "regard-row-layer1-head2-query9.csv"
    rows = table(data)
    torch.testing.assert_close(
        torch.tensor([float(one["weight"]) for one in rows]), run.row(1, 2, 9).float()
    )
    assert [int(one["key"]) for one in rows] == list(range(len(run.tokens)))
    _, data = download(page, "readouts-csv")
    rows = table(data)
    for at, column in enumerate(("entropy_nats", "distance_tokens", "first_token", "received")):
        numbers = torch.tensor([float(one[column]) for one in rows])
        torch.testing.assert_close(numbers, run.readouts(1, 2)[at].float())
    _, data = download(page, "heads-csv")
    rows = table(data)
    scores = [entry for layer in range(len(run.layers)) for entry in run.scores(layer)["heads"]]
    assert [one["role"] for one in rows] == [entry["role"] for entry in scores]
    assert [float(one["entropy"]) for one in rows] == pytest.approx([e["entropy"] for e in scores])


def harmless(page):
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main iframe").count() == 0


def test_a_text_is_only_ever_text(show, settled, model):
    page = show(model)
    for text in INJECTED:
        page.locator("#edit").click()
        page.locator("#entry-text").fill(text)
        page.locator("#entry-run").click()
        page.locator("#entry").wait_for(state="hidden")
        settled(page)
        shown = "".join(page.locator("#tokens .token").all_text_contents())
        if text.isascii() and text.isprintable():
            assert shown.replace("␣", " ") == text
        page.locator("#tokens .token").last.click()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("t")
        harmless(settled(page))


@pytest.fixture(scope="module")
def hostile(make_recording):
    tokens = [*INJECTED, "=HYPERLINK(1)", "x" * 300, "", " ", "\x00", "\ufeff"]
    given = torch.randn(1, 2, 1, 2, len(tokens), 5, generator=torch.Generator().manual_seed(0))
    recording = make_recording(given, tokens=[tokens])
    return RecordingSubject(recording, title="<img src=x onerror=window.hacked=1>")


def test_the_tokens_of_a_recording_are_only_ever_text(show, settled, hostile):
    page = show(hostile, "#q=12&k=1")
    shown = page.locator("#tokens .token").all_text_contents()
    assert shown[0] == INJECTED[0]
    assert shown[1] == INJECTED[1]
    assert "<img src=x onerror" in page.locator("#about").text_content()
    for at in range(len(shown)):
        page.locator(f"#tokens .token[data-at='{at}']").focus()
        page.keyboard.press("Enter")
        page.locator("#tab-panel-title", has_text=f"of query {at} ").wait_for()
    page.keyboard.press("t")
    harmless(settled(page))
    _, data = download(page, "row-csv")
    assert not [one for one in table(data) if one["key_token"].startswith(("=", "+", "-", "@"))]
    _, data = download(page, "map-svg")
    assert b"<script" not in data
    assert b"<img" not in data
    ET.fromstring(data)
    harmless(settled(page))


def test_a_recording_takes_no_text(show, settled, hostile):
    page = show(hostile)
    assert not page.locator("#edit").is_visible()
    assert not page.locator("#generate").is_visible()
    assert not page.locator("#predictions-panel").is_visible()
    page.locator("#compare").select_option("head")
    page.locator("#map-second canvas").wait_for()
    settled(page)


def test_a_server_that_has_ended_is_missed_and_found_again(show, settled, shipped, running):
    subject = ModelSubject(*shipped, title="the model", text="the cat sat on the mat")
    page = show(subject, offline=True)
    tokens = page.locator("#tokens .token").all_text_contents()
    explorer = running(subject)
    explorer.stop()
    page.locator("#tokens .token[data-at='3']").click()
    page.locator("#offline").wait_for()
    assert "does not answer" in page.locator("#offline").text_content()
    assert page.locator("#tokens .token").all_text_contents() == tokens
    other = ModelSubject(*shipped, title="the model")  # it has another text open
    back = Explorer(other, port=explorer.port)
    back.start()
    try:
        page.locator("#offline").wait_for(state="hidden")
        settled(page)
        assert page.locator("#tokens .token").all_text_contents() == tokens
        page.locator("#tokens .token[data-at='4']").click()
        page.locator("#tab-panel-title", has_text="of query 4").wait_for()
        page.locator("#steps .sum", has_text="5 visible keys").wait_for()
    finally:
        page.context.close()
        back.stop()


CUT = """() => {
  const cut = [];
  for (const one of document.querySelectorAll("body *")) {
    const style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    const unread = ".unseen, [hidden], option, select, textarea, canvas";
    if (!box.width || style.visibility === "hidden" || one.closest(unread)) continue;
    const name = [one.tagName, one.id, one.className, one.textContent.slice(0, 40)];
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!text) continue;
    const clips = ["hidden", "clip"].includes(style.overflowX);
    const dots = style.textOverflow === "ellipsis";
    if (clips && one.scrollWidth > one.clientWidth + 1 && !dots) cut.push(name);
    let parent = one.parentElement;
    while (parent && parent !== document.body) {
      const look = getComputedStyle(parent);
      if (["hidden", "clip"].includes(look.overflowX) && look.textOverflow !== "ellipsis") {
        const around = parent.getBoundingClientRect();
        const past = box.right > around.right + 1.5;
        if (past) cut.push(["past", parent.id || parent.className, ...name]);
      }
      parent = parent.parentElement;
    }
  }
  return cut;
}"""


@pytest.mark.parametrize("what", ["model", "hostile"])
def test_nothing_is_cut_and_nothing_overflows(show, settled, resize, request, tmp_path, what):
    page = show(request.getfixturevalue(what), "#q=9&k=3")
    problems = {}
    for width, scheme in itertools.product([1440, 900], ["light", "dark"]):
        page.emulate_media(color_scheme=scheme)
        resize(page, width)
        for name, keys in [("steps", ""), ("readouts", "t"), ("wide", "h"), ("keys", "h?")]:
            for key in keys:
                page.keyboard.press(key)
            settled(page)
            place = width, scheme, name
            picture = "-".join(map(str, (what, *place)))
            page.screenshot(path=tmp_path / f"{picture}.png", full_page=True)
            inside, outside = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            if inside > outside:
                problems[*place, "overflow"] = inside - outside
            if cut := page.evaluate(CUT):
                problems[*place, "cut"] = cut
        page.keyboard.press("Escape")
        page.keyboard.press("t")
    assert problems == {}


def test_what_colours_say_stays_where_the_system_has_its_own(show, model):
    page = show(model, "#p=panel")
    backgrounds = """[".swatch.gives", ".bar"].map((name) =>
      getComputedStyle(document.querySelector(name)).backgroundColor)"""
    own = page.evaluate(backgrounds)
    page.emulate_media(forced_colors="active")
    assert page.evaluate(backgrounds) == own
    edge = "getComputedStyle(document.querySelector('#tokens .token')).borderBottomColor"
    assert page.evaluate(edge) == "rgba(0, 0, 0, 0)"  # no line that would say that it attends


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_scheme_is_that_of_the_system(show, model, scheme):
    page = show(model, color_scheme=scheme)
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    channels = [int(number) for number in re.findall(r"\d+", paper)[:3]]
    assert (sum(channels) > 3 * 128) == (scheme == "light")
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_colours_chosen_on_another_page_are_those_of_this_one(show, model):
    """As of the site's front page, which the page with the model stands in."""
    page = show(model, color_scheme="light")
    other = page.context.new_page()
    other.goto(page.url)
    other.locator("#theme").click()
    other.locator("#theme").click()
    page.locator("html[data-theme=dark]").wait_for()
