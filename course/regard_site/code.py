"""Code blocks as HTML: coloured by Pygments, and what is typed apart from what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pygments.lexer import Lexer
from pygments.lexers import BashLexer, PythonLexer, TextLexer, TOMLLexer
from pygments.token import STANDARD_TYPES, _TokenType

__all__ = ["code_block", "code_line"]

_LEXERS: dict[str, Lexer] = {
    "python": PythonLexer(stripnl=False),
    "sh": BashLexer(stripnl=False),
    "toml": TOMLLexer(stripnl=False),
    "text": TextLexer(stripnl=False),
}
_PROMPTS = (">>> ", "... ")


def code_block(text: str, language: str) -> str:
    """Write a block as ``<pre>``.

    Of a session each statement stands in ``.typed``, which is what a reader copies, with its
    prompts beside it, and each answer in ``.printed``.

    Args:
        text: the code.
        language: as named after the fence.

    Raises:
        ValueError: for a language without a lexer.
    """
    language = language or "text"
    if language not in _LEXERS:
        raise ValueError(f"no lexer for code in {language!r}; known are {', '.join(_LEXERS)}")
    text = text.rstrip("\n")
    is_session = language == "python" and text.lstrip().startswith(">>>")
    body = "".join(_session(text)) if is_session else _highlight(text, _LEXERS[language])
    kind = "session" if is_session else language
    return f'<div class="code"><pre class="{kind}"><code>{body}</code></pre></div>\n'


def code_line(text: str) -> str:
    """Write Python that is part of other text, such as a signature."""
    return f"<code>{_highlight(text, _LEXERS['python'])}</code>"


def _session(text: str) -> Iterator[str]:
    """Statements with their prompts, and answers."""
    for is_input, lines in _parts(text):
        if not is_input:
            yield f'<samp class="printed">{escape("".join(lines))}</samp>'
            continue
        statement = "".join(line[4:] if len(line) > 4 else "\n" for line in lines)
        html_lines = _highlight(statement, _LEXERS["python"]).split("\n")
        yield '<span class="typed">'
        for line, html in zip(lines, html_lines, strict=False):
            end = "\n" if line.endswith("\n") else ""
            yield f'<span class="prompt">{escape(line[:3])} </span>{html}{end}'
        yield "</span>"


def _parts(text: str) -> Iterator[tuple[bool, list[str]]]:
    """Lines that are typed, and lines that are printed, in turn."""
    lines: list[str] = []
    was_input = True
    for line in text.splitlines(keepends=True):
        is_input = line.startswith(_PROMPTS) or line.rstrip("\n") in {">>>", "..."}
        if lines and (is_input != was_input or line.startswith(">>>")):
            yield was_input, lines
            lines = []
        was_input = is_input
        lines.append(line)
    if lines:
        yield was_input, lines


def _highlight(text: str, lexer: Lexer) -> str:
    """Text with a class for each kind of token; a token never spans two lines."""
    parts = []
    for kind, value in lexer.get_tokens(text):
        name = _short_name(kind)
        lines = (escape(line) for line in value.split("\n"))
        parts.append("\n".join(f'<i class="{name}">{x}</i>' if name and x else x for x in lines))
    html = "".join(parts)
    return html if text.endswith("\n") else html.rstrip("\n")  # the lexer ends the last line


def _short_name(kind: _TokenType) -> str:
    """A comment, keyword, number or string; all else has the colour of the text."""
    short: str = STANDARD_TYPES.get(kind, "")
    return short[0] if short[:1] in {"c", "k", "m", "s"} else ""
