"""The reference: a page for each public module, made of its docstrings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape

import griffe

from regard_site.code import code_block, code_line
from regard_site.docstrings import Entry, Room, rooms
from regard_site.markup import Part, render
from regard_site.sources import Page

__all__ = ["ReferencePage", "address_of", "reference_pages"]

_EXAMPLE = re.compile(r"(?:^ *(?:>>>|\.\.\.).*\n?(?:^(?! *>>>).*\S.*\n?)*)+", flags=re.MULTILINE)
_ROLE = re.compile(r"``([^`]+)``")


@dataclass(frozen=True)
class ReferencePage:
    """A page of the reference.

    Args:
        page: its address and title.
        html: what it says.
        contents: its names and their anchors, for the list beside it.
        parts: its text, for search.
    """

    page: Page
    html: str
    contents: list[tuple[str, str]]
    parts: list[Part]


def reference_pages(link: Callable[[str], str]) -> list[ReferencePage]:
    """Write every page of the reference."""
    return [_page(room, link) for room in rooms()]


def address_of(name: str) -> str | None:
    """Where a public name is described, from the site's folder; None if it is not one."""
    return _addresses().get(name.partition("(")[0])


@cache
def _addresses() -> dict[str, str]:
    """The address of each public name, under every path that it can be imported by."""
    known = {}
    for room in rooms():
        for entry in room.entries:
            if entry.same_as is None:
                for one in (entry, *entry.members):
                    known[one.path] = f"{_address(room)}#{one.path}"
    aliases = (entry for room in rooms() for entry in room.entries)
    return known | {one.path: known[one.same_as] for one in aliases if one.same_as is not None}


def _address(room: Room) -> str:
    return f"reference/{room.path}.html"


def _page(room: Room, link: Callable[[str], str]) -> ReferencePage:
    writer = _Writer(room, link)
    html = "".join(writer.room())
    page = Page(_address(room), room.path)
    contents = [(entry.path, entry.path.removeprefix(f"{room.path}.")) for entry in room.entries]
    return ReferencePage(page, html, contents, writer.parts)


class _Writer:
    """Writes one page, and collects its text for search."""

    def __init__(self, room: Room, link: Callable[[str], str]) -> None:
        self.parts: list[Part] = []
        self._room = room
        self._link = link

    def room(self) -> Iterator[str]:
        yield f"<h1><code>{escape(self._room.path)}</code></h1>\n"
        yield from map(self._section, self._room.sections)
        for entry in self._room.entries:
            yield from self._entry(entry)

    def _entry(self, entry: Entry) -> Iterator[str]:
        """A name of the module, and below it what a class has."""
        anchor = escape(entry.path)
        short = entry.path.removeprefix(f"{self._room.path}.")
        yield '<div class="entry">'
        yield f'<h2 id="{anchor}"><code>{escape(short)}</code>'
        yield f' <span class="kind">{entry.kind}</span></h2>\n'
        if entry.same_as is None:
            self.parts.append(Part(entry.path, entry.path))
            if entry.signature is not None:
                yield code_block(f"{short}{entry.signature}", "python")
            yield from map(self._section, entry.sections)
            for member in entry.members:
                yield from self._member(member)
        else:
            target = escape(self._link(_addresses()[entry.path]))
            yield f'<p>The same as <a href="{target}"><code>{escape(entry.same_as)}</code></a>.</p>'
        yield "</div>\n"

    def _member(self, entry: Entry) -> Iterator[str]:
        """A method or field: its signature is its heading."""
        short = entry.path.rpartition(".")[2]
        self.parts.append(Part(entry.path, entry.path))
        signature = code_line(entry.signature or "")
        yield '<div class="member">'
        yield f'<h3 id="{escape(entry.path)}"><b>{short}</b>{signature}</h3>\n'
        yield from map(self._section, entry.sections)
        yield "</div>\n"

    def _section(self, section: griffe.DocstringSection) -> str:
        if isinstance(section, griffe.DocstringSectionText):
            return self._text(str(section.value))
        if isinstance(section, griffe.DocstringSectionAdmonition):
            return self._with_title(str(section.value.kind), self._text(section.value.contents))
        title = section.title or section.kind.value
        items = "".join(self._item(one) for one in section.value)
        return self._with_title(title, f"<dl>{items}</dl>\n")

    def _with_title(self, title: str, html: str) -> str:
        return f'<p class="label">{escape(title.capitalize())}</p>\n{html}'

    def _item(self, one: griffe.DocstringElement) -> str:
        """A parameter, result or error: its name or type, and what it is."""
        name = getattr(one, "name", "") or ""
        kind = "" if name or one.annotation is None else " ".join(str(one.annotation).split())
        term = f"<dt><code>{escape(name or kind)}</code></dt>" if name or kind else ""
        return f"{term}<dd>{self._text(one.description)}</dd>"

    def _text(self, text: str) -> str:
        """Markdown, with examples as code."""
        text = _ROLE.sub(r"`\1`", text)
        text = _EXAMPLE.sub(_fence_example, text)
        rendered = render(text, link=self._outside, name=self._name)
        if self.parts:
            for part in rendered.parts:
                self.parts[-1].text += part.text
        return rendered.html

    def _outside(self, target: str) -> str:
        raise ValueError(f"a docstring of {self._room.path} links to {target!r}, not to an address")

    def _name(self, name: str) -> str | None:
        """A name in full, or one of this page's in short."""
        known = _addresses()
        address = known.get(name) or known.get(f"{self._room.path}.{name}")
        return self._link(address) if address else None


def _fence_example(match: re.Match[str]) -> str:
    lines = match[0].rstrip("\n").split("\n")
    margin = len(lines[0]) - len(lines[0].lstrip())
    code = "\n".join(line[margin:] for line in lines)
    return f"\n```python\n{code}\n```\n"
