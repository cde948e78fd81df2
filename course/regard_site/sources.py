"""What the site is made from: its pages in their order, where their Markdown lies, and its colours.

The ladder is the numbered pages; the rest follow in the order in which `docs/README.md` links to
them. A page that nothing links to comes last, so that none is missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Page", "Section", "colours", "sections"]

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(([^)#\s]+\.md)")
_COLOURS = re.compile(
    r'^:root(?P<theme>\[data-theme="dark"\])? \{\n(?P<rules>.*?)^\}', re.MULTILINE | re.DOTALL
)
_COLOUR = re.compile(r"^  (?:color-scheme: \w+|--[\w-]+: #[0-9a-f]{3,8});\n", re.MULTILINE)
_LADDER = re.compile(r"\d\d[a-z]?-")
_CARD = "regard/gpt/shipped/README.md"
_README = "README.md"
_INDEX = "docs/README.md"
_SECURITY = "SECURITY.md"
_EXPERIMENTS = {
    "experiments/README.md": "experiments.html",
    "experiments/vllm/README.md": "vllm.html",
}
_COURSE = ("docs/questions.md", "docs/teaching.md", "docs/study.md")
_LOOK_UP = (
    "docs/definitions.md",
    "docs/promises.md",
    _SECURITY,
    _CARD,
    _README,
    "docs/contributing.md",
    "docs/site.md",
    "docs/releasing.md",
)


@dataclass(frozen=True)
class Page:
    """One page of the site.

    Args:
        address: its file, from the site's folder, such as ``01-averaging.html``.
        title: its first heading, without marks.
        source: its Markdown, from the repository's folder; None for pages that have none.
    """

    address: str
    title: str
    source: str | None = None

    @property
    def is_numbered(self) -> bool:
        """Whether it is one of the course's numbered pages, which a reader ticks."""
        return _LADDER.match(self.address) is not None

    def text(self) -> str:
        """Its Markdown."""
        assert self.source is not None, "only pages of Markdown are read"
        return (ROOT / self.source).read_text("utf-8")


@dataclass(frozen=True)
class Section:
    """Pages under one name, as the navigation lists them."""

    title: str
    pages: Sequence[Page]


def sections() -> list[Section]:
    """Every page of Markdown, in the order of reading."""
    docs = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    docs += _EXPERIMENTS
    ladder = [name for name in docs if _LADDER.match(Path(name).name)]
    linked = [name for name in _links(_INDEX) if name in docs]
    elsewhere = {*ladder, *_COURSE, _INDEX, *_LOOK_UP}
    rest = [name for name in dict.fromkeys([*linked, *docs]) if name not in elsewhere]
    return [
        Section("Learn", [_page(name) for name in (_INDEX, *ladder, *_COURSE)]),
        Section("Use", [_page(name) for name in rest]),
        Section("Look up", [_page(name) for name in _LOOK_UP]),
    ]


def _links(source: str) -> Iterator[str]:
    """The Markdown files that a page links to, from the repository's folder."""
    folder = (ROOT / source).parent
    for target in _LINK.findall((ROOT / source).read_text("utf-8")):
        path = (folder / target).resolve()
        if path.is_relative_to(ROOT):
            yield path.relative_to(ROOT).as_posix()


def _page(source: str) -> Page:
    text = (ROOT / source).read_text("utf-8")
    heading = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    if heading is None:
        raise ValueError(f"{source} has no heading of the first level; give it one: # Title")
    title = "README" if source == _README else heading[1].replace("`", "")
    return Page(_address(source), title, source)


def _address(source: str) -> str:
    if source == _INDEX:
        return "learn.html"
    if source == _CARD:
        return "model.html"
    if source == _README:
        return "readme.html"
    if source == _SECURITY:
        return "security.html"
    if source in _EXPERIMENTS:
        return _EXPERIMENTS[source]
    return Path(source).relative_to("docs").with_suffix(".html").as_posix()


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
