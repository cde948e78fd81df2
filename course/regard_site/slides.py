"""The slides of the course: one file of HTML, from slides.md, the pages' pictures and outputs.

In slides.md each heading of the second level begins a slide. The comment
``<!-- printed 05-causal-mask.md: weights -->`` becomes the session of that page in which
``>>> weights`` stands first, so a slide shows what the tests have compared. A paragraph that begins
with “Note:” is for the one who speaks.
"""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from regard_site.markup import render
from regard_site.sources import ROOT, colours

__all__ = ["write_slides"]

_HERE = Path(__file__).parent
_PRINTED = re.compile(r"^<!-- printed (?P<page>\S+): (?P<statement>.+) -->$", re.MULTILINE)
_NOTE = re.compile(r"^Note: (?P<text>(?:.+\n?)+)", re.MULTILINE)
_MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}


def write_slides(file: Path) -> None:
    """Write the slides; nothing that they show lies outside the file.

    Args:
        file: the HTML file.

    Raises:
        ValueError: for a page that prints no such thing, and a picture that does not exist.
    """
    title, *parts = re.split(r"^## ", (_HERE / "slides.md").read_text("utf-8"), flags=re.MULTILINE)
    slides = []
    for number, part in enumerate(parts, 1):
        heading, _, body = part.partition("\n")
        note = _NOTE.search(body)
        text = _PRINTED.sub(lambda m: _printed(m["page"], m["statement"]), _NOTE.sub("", body))
        slides.append(
            {
                "number": number,
                "title": heading.strip(),
                "html": render(text, link=_embedded).html,
                "note": render(note["text"], link=_embedded).html if note else "",
            }
        )
    templates = Environment(
        loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined
    )
    html = templates.get_template("slides.html").render(
        title=title.removeprefix("# ").strip(), slides=slides, colours=colours()
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(html, "utf-8")


def _printed(page: str, statement: str) -> str:
    """The session of a page from a statement to what it prints, as a block of Markdown."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    start = rf"^>>> {re.escape(statement)}(?:  #.*)?\n"
    match = re.search(start + r"(?:(?!>>> |```).*\n)+", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"{page} has no session in which {statement!r} prints something")
    return f"```python\n{match[0]}```"


def _embedded(target: str) -> str:
    """A picture as data; a page of the course under its address on the site."""
    path, mark, anchor = target.partition("#")
    kind = _MEDIA.get(Path(path).suffix)
    if kind is None:
        return Path(path).with_suffix(".html").name + mark + anchor
    picture = ROOT / "docs" / path
    if not picture.is_file():
        raise ValueError(f"slides.md shows {target}, which does not exist")
    return f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


if __name__ == "__main__":
    write_slides(Path(sys.argv[1]))
