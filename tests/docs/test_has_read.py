"""What the shipped model has read is said wherever it is shown, in the same words."""

import pages
import pytest

from regard.gpt.checkpoint import HAS_READ

ROOT = pages.FOLDER.parent
SHOWN = [
    "README.md",
    "docs/README.md",
    "docs/00-why-look-back.md",
    "docs/explore.md",
    "docs/teaching.md",
    "website/slides.md",
]


@pytest.mark.parametrize("page", SHOWN)
def test_a_page_says_what_the_model_has_read(page):
    lines = (ROOT / page).read_text("utf-8").replace("\n> ", "\n")
    assert HAS_READ in " ".join(lines.split())
