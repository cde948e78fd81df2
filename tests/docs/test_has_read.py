"""What the shipped model has read is said wherever it is shown, in the same words."""

import re

import pages
import pytest

from regard.gpt.config import HAS_READ

ROOT = pages.FOLDER.parent
# Beside these every page whose code loads the model.
SHOWN = ["README.md", "docs/README.md", "docs/explore.md", "course/regard_site/slides.md"]
SHOWN += [
    f"docs/{page.name}"
    for page in sorted(pages.FOLDER.glob("*.md"))
    if page.name != "explore.md" and re.search(r"\bload\(\)", page.read_text("utf-8"))
]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_says_what_the_model_has_read(page):
    lines = (ROOT / page).read_text("utf-8").replace("\n> ", "\n")
    assert HAS_READ in " ".join(lines.split())
