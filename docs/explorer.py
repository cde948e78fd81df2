"""Take the picture of the explorer's page: needs playwright and a chromium on the machine.

``python docs/explorer.py [FILE]`` writes it, by default to docs/pictures/explorer.png.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

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
    subject = ModelSubject(*load(), title="the model that comes with regard")
    explorer = Explorer(subject)
    explorer.start()
    unfinished = file.with_name(f"unfinished-{file.name}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
            reduced_motion="reduce",
        )
        page.goto(explorer.url)
        page.wait_for_selector("html[data-settled=true]")
        page.screenshot(path=unfinished, full_page=True)
        browser.close()
    explorer.stop()
    unfinished.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / "pictures" / "explorer.png")
