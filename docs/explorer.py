"""Take the pictures of the explorer's page: needs playwright and a chromium on the machine.

``python docs/explorer.py [FOLDER]`` writes explorer.png, the whole page, and opening.png, its top
down to the heads; by default into docs/pictures.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pages import FOLDER
from playwright.sync_api import sync_playwright

from regard.gpt import load
from regard.page import Explorer, ModelSubject

WIDTH, HEIGHT = 1440, 900


def main(folder: Path) -> None:
    """Serve the shipped model, open the page and keep what is seen."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("the explorer's pictures need Debian's chromium; they were left as they are")
    subject = ModelSubject(*load(), title="the model that comes with regard")
    explorer = Explorer(subject)
    explorer.start()
    whole, opening = (folder / f"unfinished-{name}.png" for name in ("explorer", "opening"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
            reduced_motion="reduce",
        )
        page.goto(explorer.url)
        page.wait_for_selector("html[data-settled=true]")
        page.screenshot(path=whole, full_page=True)
        heads = page.locator("#heads-panel").bounding_box()
        assert heads is not None, "the page shows no heads"
        top = {"x": 0, "y": 0, "width": WIDTH, "height": heads["y"] + 16}
        page.screenshot(path=opening, clip=top)
        browser.close()
    explorer.stop()
    for file in (whole, opening):
        file.replace(file.with_name(file.name.removeprefix("unfinished-")))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures")
