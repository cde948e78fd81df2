"""Take the picture of the explorer's page: needs playwright and a chromium on the machine.

``python docs/explorer.py [FILE]`` writes it, by default to docs/pictures/explorer.png.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from demo import TEXT
from pages import FOLDER
from playwright.sync_api import sync_playwright

from regard.explorer import Explorer, ModelSubject
from regard.gpt import load

WIDTH, HEIGHT = 1440, 900


def main(file: Path) -> None:
    """Serve the shipped model, open the page and keep what is seen."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("the explorer's picture needs Debian's chromium; it was left as it is")
    subject = ModelSubject(*load(), title="the model that comes with regard", text=TEXT)
    explorer = Explorer(subject)
    explorer.start()
    unfinished = file.with_name(f"unfinished-{file.name}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        layer, head = _inducing(subject)  # as the page chooses by itself, on an idle machine
        page.goto(f"{explorer.url}#l={layer}&h={head}")
        page.wait_for_selector("html[data-settled=true]")
        page.screenshot(path=unfinished)
        browser.close()
    explorer.stop()
    unfinished.replace(file)


def _inducing(subject: ModelSubject) -> tuple[int, int]:
    """The head that copies most: its layer and its place in it."""
    run = subject.run(subject.about()["runs"][0])
    scores = {
        (layer, entry["head"]): entry["induction"]
        for layer in range(len(run.layers))
        for entry in run.scores(layer)["heads"]
    }
    return max(scores, key=scores.__getitem__)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures" / "explorer.png")
