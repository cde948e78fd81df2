"""The steps of a query: any key of it can be reached, followed to the output, and exported."""

import csv
import io

import pytest
import torch

from regard.page import RecordingSubject

LENGTH, QUERY = 83, 70


@pytest.fixture(scope="module")
def many(make_recording):
    """A head with more visible keys than are written out at a time, and hidden ones."""
    query, key = torch.randn(2, 1, 2, LENGTH, 5, generator=torch.Generator().manual_seed(0))
    return RecordingSubject(make_recording([(query, key)]), title="many keys")


def rows(page):
    return page.locator("#steps tr[data-key]")


def positions(page):
    return rows(page).evaluate_all("(all) => all.map((row) => Number(row.dataset.key))")


def test_every_key_is_written_out_page_by_page(show, settled, many):
    page = show(many, f"#q={QUERY}")
    expected = many.run("0").row(0, 0, QUERY)[: QUERY + 1].argsort(descending=True).tolist()
    assert "47 weaker keys, together" in page.locator("#steps .rest").first.text_content()
    assert positions(page) == expected[:24]
    for left in (23, 0):
        page.locator("#steps .rest button", has_text="Write out the").click()
        settled(page)
        rest = page.locator("#steps .rest", has_text=f"{left} weaker keys" if left else "weaker")
        assert rest.count() == (1 if left else 0)
    assert positions(page) == expected
    # The keyboard goes on where the new rows begin.
    focused = page.evaluate("document.activeElement.closest('tr').dataset.key")
    assert int(focused) == expected[48]
    # Then those that the mask hides: their score is −∞ and their weight 0.
    page.locator("#steps .rest button", has_text="Write them out").click()
    settled(page)
    assert positions(page)[QUERY + 1 :] == list(range(QUERY + 1, LENGTH))
    cells = page.locator("#steps tr.masked").last.locator("td").all_text_contents()
    assert cells[3:5] == ["−∞", "−∞"]
    assert cells[-1] == "0"
    assert page.locator("#steps .sum td").last.text_content() == "1.000"


@pytest.mark.thorough
def test_a_weak_key_and_a_hidden_one_are_written_out_once_they_are_picked(show, settled, many):
    run = many.run("0")
    weakest = int(run.row(0, 0, QUERY)[: QUERY + 1].argmin())
    page = show(many, f"#q={QUERY}&k={weakest}")
    assert page.locator("#steps tr.on").get_attribute("data-key") == str(weakest)
    cell = run.cell(0, 0, QUERY, weakest)
    texts = rows(page).last.locator("td").all_text_contents()
    assert float(texts[3].replace("−", "-")) == pytest.approx(cell["score"], abs=6e-4)
    title = rows(page).last.locator("td").last.get_attribute("title")
    assert float(title) == pytest.approx(cell["weight"], rel=1e-4)
    page.locator("#tokens .token[data-at='80']").click(modifiers=["Shift"])
    settled(page)
    assert page.locator("#steps tr.on.masked").get_attribute("data-key") == "80"
    assert page.locator("#steps p", has_text="The mask hides this key").count() == 1


@pytest.mark.thorough
def test_rows_are_reached_and_chosen_by_the_keyboard(show, settled, many):
    page = show(many, f"#q={QUERY}")
    order = positions(page)
    names = page.locator("#steps .key-name")
    assert names.evaluate_all("(all) => all.filter((one) => one.tabIndex === 0).length") == 1
    names.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#steps tr.on").get_attribute("data-key") == str(order[2])
    assert page.evaluate("document.activeElement.closest('tr').dataset.key") == str(order[2])
    page.keyboard.press("Enter")
    settled(page)
    assert f"k={order[2]}" in page.evaluate("location.hash")
    assert page.locator("#cross dd").nth(1).text_content().split()[0] == str(order[2])
    page.keyboard.press("t")
    settled(page)
    page.locator("#readouts .key-name").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert f"k={order[1]}" in settled(page).evaluate("location.hash")


@pytest.mark.thorough
def test_one_number_is_followed_through_all_steps(show, settled, model):
    page = show(model, "#l=1&h=1&q=9&k=4")
    steps = model.run(model.about()["runs"][0]).steps(1, 1, 9, picked=4)
    vectors = page.locator("#steps .vector")
    vectors.last.focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    settled(page)
    assert page.locator("#steps th").last.text_content() == "× v[3]"
    context = f"context[3] = {steps['context'][3]:.4f}".replace("-", "−")
    assert page.locator("#steps .figure", has_text=context).count() == 1
    value = f"v[3] = {steps['picked']['value'][3]:.4f}".replace("-", "−")
    assert page.locator("#steps .figure", has_text=value).count() > 0
    upto = [one for one in steps["keys"] if one["rank"] <= steps["picked"]["rank"]]
    partial = sum(one["weight"] * one["value"][3] for one in upto)
    shown = page.locator("#steps .figure", has_text="sum[3] = ").text_content()
    assert shown.startswith(f"sum of the first {len(upto)} keys")
    assert float(shown.split(" = ")[1].replace("−", "-")) == pytest.approx(partial, abs=1e-4)


@pytest.mark.thorough
def test_the_steps_are_exported_with_all_their_keys(show, many):
    page = show(many, f"#q={QUERY}&h=1")
    page.locator("#export summary").click()
    with page.expect_download() as actual:
        page.locator("[data-export=steps-csv]").click()
    lines = list(csv.DictReader(io.StringIO(actual.value.path().read_text("utf-8"))))
    weights = many.run("0").row(0, 1, QUERY)
    assert sorted(int(line["key"]) for line in lines) == list(range(LENGTH))
    for line in lines:
        at = int(line["key"])
        assert float(line["weight"]) == pytest.approx(float(weights[at]), abs=1e-6)
        assert (line["visible"], line["masked"] == "") == (str(int(at <= QUERY)), at > QUERY)
