"""One colour for each part of attention: in figures, on the page, in pictures of the docs."""

import re

import pytest

from regard.page.file.bundle import static
from regard.view.plot.style import ROLES


def contrast(one, other):
    """By WCAG 2.2, 1.4.3."""
    luminances = []
    for colour in (one, other):
        parts = [part / 255 for part in bytes.fromhex(colour.removeprefix("#"))]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.fixture(scope="module")
def themes():
    """The page's colours, light and dark."""
    blocks = re.findall(r"^:root.*?\{\n(.*?)^\}", static("page.css"), re.DOTALL | re.MULTILINE)
    return [dict(re.findall(r"--([\w-]+): (#\w+);", block)) for block in blocks[:2]]


def test_figures_and_the_page_have_the_same_colours(themes):
    light, _ = themes
    assert {role: light[f"role-{role}"] for role in ROLES} == ROLES


@pytest.mark.parametrize("ground", ["paper", "panel"])
def test_each_can_be_read_on_light_and_on_dark_ground(themes, ground):
    for theme in themes:
        for role in ROLES:
            assert contrast(theme[f"role-{role}"], theme[ground]) > 4.5, role
