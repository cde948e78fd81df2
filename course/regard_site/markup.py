"""Markdown as HTML, with the site's links, anchors, formulas and widgets.

The Markdown is that of GitHub, where the same files are read: anchors are made as GitHub makes
them, and a widget is an HTML comment, which shows nothing there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import latex2mathml.converter
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from regard_site.code import code_block
from regard_site.exercises import question, with_exercises
from regard_site.widgets import widget

__all__ = ["Heading", "Part", "Rendered", "render"]

_NO_SLUG = re.compile(r"[^\w\- ]")
_COMMENT = re.compile(r"\s*<!--\s*(?P<kind>\w+)(?P<rest>.*?)-->\s*", flags=re.DOTALL)
_FOLDED = re.compile(r"\s*(<details>\s*<summary>[^<>]+</summary>|</details>)\s*")
_PLACES = {
    "questions": '<div class="questions"></div>\n',
    "slides": '<p><a href="slides.html">The slides</a></p>\n',
    "hour": '<div class="hour"></div>\n',
    "progress": '<div class="progress"></div>\n',
    "real": '<p><a href="index.html#real">The page with a real model</a></p>\n',
}
"""What stands on the site where a comment of one word stands in the Markdown."""
_LIVE = """<div class="live">
<iframe loading="lazy" src="live.html#{0}"
  title="The small model that comes with regard, in this page"></iframe>
<p class="note"><a href="live.html#{0}">Open it by itself</a></p>
</div>
"""
_LINK_ON = "*On the path of one hour: "
_EXTERNAL = re.compile(r"[a-z]+:")
_ASKS = re.compile(r"\*\*[^*\n]+\?\*\*")


@dataclass(frozen=True)
class Heading:
    """A heading that has an anchor.

    Args:
        level: 1 for the page's title.
        anchor: its id.
        title: what it says, without marks.
    """

    level: int
    anchor: str
    title: str


@dataclass
class Part:
    """The text under one heading, for search."""

    anchor: str
    title: str
    text: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rendered:
    """A page's HTML, its headings, and its text in parts."""

    html: str
    headings: Sequence[Heading]
    parts: Sequence[Part]


def render(
    text: str,
    *,
    link: Callable[[str], str],
    name: Callable[[str], str | None] = lambda _: None,
    page: Callable[[str], str] = lambda _: "",
    notebook: str | None = None,
) -> Rendered:
    """Turn Markdown into HTML.

    Args:
        text: the Markdown.
        link: gives the address on the site for a target in the repository.
        name: gives the address of the reference of a name in code, or None.
        page: gives the Markdown of another page, from which a widget takes numbers.
        notebook: the address of the page's notebook, if the site has one.

    Raises:
        ValueError: for HTML that is neither a comment nor ``<details>`` with its summary, and for
            what `link` refuses.
    """
    tokens = with_exercises(_without_steps_of_the_ladder(_PARSER.parse(text)), notebook)
    headings, parts = _outline(tokens)
    environment = {"link": link, "name": name, "page": page, "text": text}
    return Rendered(_PARSER.renderer.render(tokens, _PARSER.options, environment), headings, parts)


def slug(title: str) -> str:
    """The anchor that GitHub gives a heading."""
    return _NO_SLUG.sub("", title.strip().lower()).replace(" ", "-")


def _without_steps_of_the_ladder(tokens: list[Token]) -> list[Token]:
    """Leave out the line of links to the pages around: the site has its own."""
    for at, token in enumerate(tokens):
        if token.type == "inline" and "[Index](README.md)" in token.content:
            return tokens[: at - 1] + tokens[at + 2 :]
    return tokens


def _outline(tokens: Sequence[Token]) -> tuple[list[Heading], list[Part]]:
    """Give headings their anchors, and collect the text under each."""
    headings: list[Heading] = []
    parts = [Part("", "")]
    used: dict[str, int] = {}
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[at + 1]
            title = _plain(inline)
            anchor = slug(title)
            used[anchor] = used.get(anchor, -1) + 1
            anchor = f"{anchor}-{used[anchor]}" if used[anchor] else anchor
            token.attrSet("id", anchor)
            headings.append(Heading(int(token.tag[1]), anchor, title))
            parts.append(Part(anchor, title))
        elif token.type == "th_open" and not tokens[at + 1].content:
            token.tag = tokens[at + 2].tag = "td"  # the corner of a table heads nothing
        elif token.type == "inline" and tokens[at - 1].type != "heading_open":
            parts[-1].text.append(_plain(token))
        elif token.type == "fence":
            parts[-1].text.append(token.content)
    return headings, [part for part in parts if part.title or part.text]


def _plain(inline: Token) -> str:
    """The words of a paragraph or heading."""
    words = {"softbreak": " ", "hardbreak": " ", "exercise": ""}
    return "".join(
        words.get(child.type, child.content)
        for child in inline.children or ()
        if child.type != "image"
    )


def _fence(_: RendererHTML, tokens: Sequence[Token], at: int, *_rest: Any) -> str:
    return code_block(tokens[at].content, tokens[at].info.strip())


def _code(_: RendererHTML, tokens: Sequence[Token], at: int, _options: Any, env: Any) -> str:
    """A name that the reference describes links to it, unless it stands in a link already."""
    html = f"<code>{escape(tokens[at].content)}</code>"
    address = env["name"](tokens[at].content)
    inside = sum(token.nesting for token in tokens[:at] if token.type.startswith("link_"))
    return (
        f'<a class="name" href="{escape(address)}">{html}</a>' if address and not inside else html
    )


def _link(renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any) -> str:
    target = str(tokens[at].attrs["href"])
    if not _EXTERNAL.match(target):
        tokens[at].attrSet("href", env["link"](target))
    return renderer.renderToken(tokens, at, options, env)


def _image(_: RendererHTML, tokens: Sequence[Token], at: int, _options: Any, env: Any) -> str:
    """A picture with the words that stand for it."""
    source = env["link"](str(tokens[at].attrs["src"]))
    words = escape(tokens[at].content)
    return f'<img src="{escape(source)}" alt="{words}" loading="lazy">'


def _paragraph(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any
) -> str:
    inline = tokens[at + 1]
    if inline.content.startswith("**To keep:**"):
        tokens[at].attrSet("class", "keep")
    elif _ASKS.fullmatch(inline.content):
        tokens[at].attrSet("class", "asks")
    elif inline.content.startswith(_LINK_ON):
        tokens[at].attrSet("class", "onpath")
    elif [child.type for child in inline.children or ()] == ["image"]:
        tokens[at].attrSet("class", "picture")
    return renderer.renderToken(tokens, at, options, env)


def _heading_end(
    renderer: RendererHTML, tokens: Sequence[Token], at: int, options: Any, env: Any
) -> str:
    """A heading links to itself."""
    anchor = escape(str(tokens[at - 2].attrs["id"]))
    mark = f'<a class="anchor" href="#{anchor}" aria-label="Link to this heading">#</a>'
    is_title = tokens[at].tag == "h1"
    return ("" if is_title else mark) + renderer.renderToken(tokens, at, options, env)


def _table_start(_renderer: RendererHTML, *_: Any) -> str:
    return '<div class="table"><table>\n'


def _table_end(_renderer: RendererHTML, *_: Any) -> str:
    return "</table></div>\n"


def _html(_: RendererHTML, tokens: Sequence[Token], at: int, _options: Any, env: Any) -> str:
    """A widget or a question becomes one; other comments are left out; what is folded stays so."""
    text = tokens[at].content
    if _FOLDED.fullmatch(text):
        return text
    match = _COMMENT.fullmatch(text)
    if match is None and not re.fullmatch(r"\s*<!--.*-->\s*", text, flags=re.DOTALL):
        raise ValueError(
            "HTML other than comments and <details><summary>Hint</summary> between empty lines is "
            f"not taken from Markdown: {text.strip()!r}"
        )
    if match is None or match["kind"] not in {"widget", "question", "live", *_PLACES}:
        return ""
    if match["kind"] in _PLACES:
        return _PLACES[match["kind"]]
    if match["kind"] == "live":
        return _LIVE.format(escape(match["rest"].strip()))
    try:
        if match["kind"] == "question":
            return question(match["rest"])
        return widget(match["rest"], env["text"], env["page"])
    except ValueError as error:
        raise ValueError(f"in {text.strip()!r}: {error}") from None


def _exercise(_: RendererHTML, tokens: Sequence[Token], at: int, *_rest: Any) -> str:
    return tokens[at].content


def _formula(content: str, options: dict[str, Any]) -> str:
    display = "block" if options["display_mode"] else "inline"
    return latex2mathml.converter.convert(content, display=display)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.use(dollarmath_plugin, renderer=_formula, allow_space=False, double_inline=False)
    rules: dict[str, Callable[..., str]] = {
        "fence": _fence,
        "code_inline": _code,
        "link_open": _link,
        "image": _image,
        "paragraph_open": _paragraph,
        "heading_close": _heading_end,
        "table_open": _table_start,
        "table_close": _table_end,
        "html_block": _html,
        "exercise": _exercise,
        "html_inline": _html,
    }
    for kind, rule in rules.items():
        parser.add_render_rule(kind, rule)
    return parser


_PARSER = _parser()
