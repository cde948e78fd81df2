"""The colours of the explorer's page, which the site's pages and slides have, too."""

from __future__ import annotations

import re

from regard_site.sources import ROOT

__all__ = ["colours"]

_COLOURS = re.compile(
    r'^:root(?P<theme>\[data-theme="dark"\])? \{\n(?P<rules>.*?)^\}', re.MULTILINE | re.DOTALL
)
_COLOUR = re.compile(r"^  (?:color-scheme: \w+|--[\w-]+: #[0-9a-f]{3,8});\n", re.MULTILINE)


def colours() -> str:
    """The colours of the explorer's page, light and dark, for this site's style."""
    text = (ROOT / "regard/page/static/page.css").read_text("utf-8")
    blocks = {
        bool(one["theme"]): "".join(_COLOUR.findall(one["rules"]))
        for one in _COLOURS.finditer(text)
    }
    if not (blocks.get(False) and blocks.get(True)):
        raise ValueError("page.css must begin with a :root of light colours and one of dark ones")
    return f':root {{\n{blocks[False]}}}\n:root[data-theme="dark"] {{\n{blocks[True]}}}\n'
