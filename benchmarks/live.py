"""How soon a live report shows what is typed or switched off, in a browser."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from benchmarks.report import Report

KEYSTROKES = 25
HEADS = 7  # that are switched off, one at a time
SIZES = ((100, 50.0, 300.0), (512, 200.0, 600.0))
"""Tokens of the text, and the milliseconds that a key at its end, and all of it anew, may take."""
SWITCH = 100.0
"""Likewise for a head that is switched off, at the first of these sizes."""
# From an event until a map is drawn and the next tokens are listed, both of the new run.
SHOWN = """
async (text) => {
  const field = document.getElementById("entry-text");
  const next = document.getElementById("predictions");
  const drawn = new Promise((go) => document.addEventListener("pictures", go, { once: true }));
  const listed = new Promise((go) => new MutationObserver(go).observe(next, { childList: true }));
  if (text != null) field.value = text;
  const since = performance.now();
  if (text == null) document.getElementById("switch").click();
  else field.dispatchEvent(new Event("input", { bubbles: true }));
  await Promise.all([drawn, listed]);
  await new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
  return performance.now() - since;
}
"""


def live(report: Report) -> None:
    """Print the table of the shipped model."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        print("\nlive report: playwright is not installed")
        return
    report.table(
        "live report: from a key until the map and the next tokens", ("text", 42), ("ms", 30)
    )
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as player, tempfile.TemporaryDirectory() as folder:
        try:
            browser = player.chromium.launch(executable_path=chromium, args=arguments)
        except Error as error:
            print(f"live report: no chromium starts ({str(error).splitlines()[0]})")
            return
        file = Path(folder, "live.html")
        text = _written(file)
        for tokens, of_key, of_all in SIZES:
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(file.as_uri())
            whole, keys = _typed(page, text[tokens])
            name = f"a key at the end of {tokens} tokens"
            report.row(name, report.at_most(name, statistics.median(keys), of_key, ".0f"))
            name = f"all {tokens} tokens, read anew"
            report.row(name, report.at_most(name, whole, of_all, ".0f"))
            if tokens == SIZES[0][0]:
                name = f"a head switched off, at {tokens} tokens"
                report.row(name, report.at_most(name, _switched(page), SWITCH, ".0f"))
            page.close()
        browser.close()


def _written(file: Path) -> dict[int, str]:
    """Write the report; a text of each size, with room for what is typed."""
    import regard
    from regard.gpt import load
    from regard.gpt.stories import stories

    model, tokenizer = load()
    regard.report(model, file, tokenizer=tokenizer, live=True)
    ids = tokenizer.encode("".join(story.text for story in stories(0, 9)))
    return {tokens: tokenizer.decode(ids[: tokens - KEYSTROKES]) for tokens, _, _ in SIZES}


def _typed(page: Page, text: str) -> tuple[float, list[float]]:
    """Milliseconds until a text is shown, and after each key that is typed at its end."""
    page.wait_for_selector("html[data-settled=true] #tokens .token")
    page.locator("#examples button").last.click()
    whole = float(page.evaluate(SHOWN, text))
    taken = []
    for _ in range(KEYSTROKES):
        page.wait_for_selector("html[data-settled=true]")
        text += "7"  # a token of its own
        taken.append(float(page.evaluate(SHOWN, text)))
    return whole, taken


def _switched(page: Page) -> float:
    """Milliseconds until the run without a head is shown, one head after the other."""
    taken = []
    for cell in range(HEADS):
        page.wait_for_selector("html[data-settled=true]")
        page.locator("#grid .cell").nth(cell).click()
        page.wait_for_selector("html[data-settled=true]")
        taken.append(float(page.evaluate(SHOWN, None)))
        page.locator("#undo").click()
    return statistics.median(taken)
