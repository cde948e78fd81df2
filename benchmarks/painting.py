"""How soon the explorer's page shows a pattern, in a browser."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.serving import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from benchmarks.report import Report
    from regard.record import Recording

TOKENS = 512
ROUNDS, LONG_ROUNDS = 5, 3
# When the first map of each kind has been drawn, in ms since the page was requested.
DRAWN = """
const drawn = (kind) => new Promise((resolve) => {
  const seen = () => requestAnimationFrame(() => setTimeout(() => resolve(performance.now())));
  document.addEventListener(kind, seen, { once: true });
});
window.drawn = { sketched: drawn("sketched"), pictures: drawn("pictures") };
"""
SKETCH, WHOLE = "sketched", "pictures"
"""The page's events: a long map is drawn from some of its queries, a map from all of them."""
TARGET = 1000.0


def painting(report: Report, record: Callable[[], Recording], length: int) -> None:
    """Print the rows of the shipped model, and of what `record` records of so many tokens.

    Each page is in a browser that has kept nothing, and each recording is a new one: the first
    map of a head computes its log-sum-exps, which stay known.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError:
        print("first paint: playwright is not installed")
        return
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as player:
        try:
            browser = player.chromium.launch(executable_path=chromium, args=arguments)
        except Error as error:
            print(f"first paint: no chromium starts ({str(error).splitlines()[0]})")
            return
        _of_the_model(report, browser)
        _of_recordings(report, browser, record, length)
        browser.close()


def _of_the_model(report: Report, browser: Browser) -> None:
    from regard.gpt import load
    from regard.page.example import EXAMPLE
    from regard.page.subjects import ModelSubject

    model, tokenizer = load()
    subject = ModelSubject(model, tokenizer, title="the model", text=" ".join([EXAMPLE] * 40))
    tokens = len(subject.run(subject.about()["runs"][0]).tokens)
    with served(subject) as client:
        taken = [_drawn(browser, str(client.base_url), WHOLE)[WHOLE] for _ in range(ROUNDS)]
    name = f"first map of {tokens} tokens in a browser"
    target = TARGET if tokens == TOKENS else None
    report.row(name, report.at_most(name, statistics.median(taken), target, ".0f"))


def _of_recordings(
    report: Report, browser: Browser, record: Callable[[], Recording], length: int
) -> None:
    from regard.page import RecordingSubject

    taken = []
    for _ in range(LONG_ROUNDS):
        with served(RecordingSubject(record(), title="recording")) as client:
            taken.append(_drawn(browser, str(client.base_url), SKETCH, WHOLE))
    for event, what in {SKETCH: "from some queries", WHOLE: "whole"}.items():
        name = f"first map of {length} tokens in a browser, {what}"
        median = statistics.median(times[event] for times in taken)
        report.row(name, report.at_most(name, median, TARGET, ".0f"))


def _drawn(browser: Browser, url: str, *events: str) -> dict[str, float]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.add_init_script(DRAWN)
    page.goto(url)
    taken = {event: float(page.evaluate(f"window.drawn.{event}")) for event in events}
    page.context.close()
    return taken
