"""How soon the explorer's page shows a pattern, in a browser."""

from __future__ import annotations

import os
import shutil
import statistics
from typing import TYPE_CHECKING

from benchmarks.serving import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from benchmarks.report import Report

TOKENS = 512
ROUNDS = 5
# When the first map has been drawn, in ms since the page was requested.
DRAWN = """
window.drawn = new Promise((resolve) => {
  const seen = () => requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
  document.addEventListener("pictures", seen, { once: true });
});
"""


def painting(report: Report) -> None:
    """Print the rows of the shipped model, each time in a browser that has kept nothing."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        print("first paint: playwright is not installed")
        return
    from regard.explorer.example import EXAMPLE
    from regard.explorer.subjects import ModelSubject
    from regard.gpt import load

    model, tokenizer = load()
    subject = ModelSubject(model, tokenizer, title="the model", text=" ".join([EXAMPLE] * 40))
    tokens = len(subject.run(subject.about()["runs"][0]).tokens)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as player, served(subject) as client:
        try:
            browser = player.chromium.launch(executable_path=chromium, args=arguments)
        except Error as error:
            print(f"first paint: no chromium starts ({str(error).splitlines()[0]})")
            return
        taken = [_drawn(browser, str(client.base_url)) for _ in range(ROUNDS)]
        browser.close()
    name = f"first map of {tokens} tokens in a browser"
    target = 1000.0 if tokens == TOKENS else None
    report.row(name, report.at_most(name, statistics.median(taken), target, ".0f"))


def _drawn(browser: Browser, url: str) -> float:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(DRAWN)
    page.goto(url)
    taken = float(page.evaluate("window.drawn"))
    page.context.close()
    return taken
