"""The page of a trace in a browser: radio buttons choose measure and hops by the style alone."""

import pytest
import torch

from regard.lens import Deletion, Trace
from regard.view.trace_page import trace_page
from regard.view.trace_report import TracedText

PIECES = ["<s>", "One", " red", "\n", " kite", "?", " It", " was", " blue"]


@pytest.fixture(scope="module")
def page():
    moved = torch.tensor([[0.1, 0.4, 0.2, 0.0, 0.1, 0.1, 0.1, 0.0, 0.0]]).double()
    toward = torch.tensor([[0.0, -2.0, 1.0, 0.0, 0.5, 0.0, 3.0, 0.0, 0.0]]).double()
    shares = {"moved": torch.cat([moved, moved / 2]), "toward": torch.cat([toward, toward])}
    found = Trace(
        shares=shares, document=(1, 5), answer=(7, 9), sinks=(4,), tokens=tuple(PIECES)
    )  # fmt: skip
    changes = {
        f"{measure}, {how}": torch.tensor([-1.0, -2.0])
        for measure in shares
        for how in ("directly", "through 1 hop")
    }
    lost = Deletion(
        log_probability=-1.0, counts=(1, 2), changes={**changes, "random": torch.zeros(2)},
        forwards=11,
    )  # fmt: skip
    text = TracedText(found, PIECES, " blue", "N/A", lost, 14)
    return trace_page(text, "a & b", "Which <one>?")


def test_radio_buttons_choose_what_is_shown(page, pages, tmp_path):
    path = tmp_path / "trace.html"
    path.write_text(page, "utf-8")

    with pages(viewport={"width": 390, "height": 800}) as shown:
        shown.goto(f"file://{path}")

        def colours(token):
            """The opacities of more and less of a token, as the browser computes them."""
            image = shown.evaluate(
                f"getComputedStyle(document.getElementById('t{token}')).backgroundImage"
            )
            parts = [one.split(")")[0] for one in image.split("srgb ")[1::2]]
            return [float(one.split("/ ")[1]) if "/" in one else 1.0 for one in parts]

        assert shown.locator(".list:visible").count() == 1
        assert shown.locator("svg:visible").count() == 1
        assert "moved" in shown.locator(".list:visible").inner_text()
        assert colours(1) == [1.0, 0.0]
        assert colours(2) == pytest.approx([0.5, 0.0])
        shown.locator("label[for=m-toward]").click()
        assert "toward" in shown.locator(".list:visible").inner_text()
        assert colours(1) == [0.0, 1.0]
        assert colours(2) == pytest.approx([0.5, 0.0])
        shown.locator("label[for=h-0]").click()
        assert shown.locator(".list:visible").get_attribute("class") == "list view toward-0"
        sink = shown.evaluate("getComputedStyle(document.getElementById('t4')).backgroundImage")
        assert sink == "none"
        width = shown.evaluate("document.documentElement.scrollWidth")
        assert width == 390
        assert "Which <one>?" in shown.locator(".asked").inner_text()
