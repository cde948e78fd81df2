"""Exercises and questions on the site, which a script lets the reader answer.

An exercise gets a field that checks an answer in the page, and its solution, folded. Questions have
choices, and are answered before the course and after it: in the Markdown a comment
``<!-- questions -->`` stands where the script shows how far one is, and
``<!-- question right=2 -->`` before each list of choices, of which the second is right here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it.token import Token
from regard_course import Answer, Exercise, exercise

from regard.errors import Error
from regard_site.code import code_block
from regard_site.shell import mark_shell
from regard_site.sources import ROOT

__all__ = ["question", "solution", "solutions_of", "with_exercises"]

_NUMBER = re.compile(r"\*\*Exercise (?P<number>(?P<page>\w+)\.\d+)\*\* ")
_RIGHT = re.compile(r"\s*right=(?P<number>[1-9])\s*")


def with_exercises(tokens: Sequence[Token], notebook: str | None = None) -> list[Token]:
    """Put each exercise into a block of its own, from its first line to the end of its hint.

    Args:
        tokens: of a page's Markdown; those added are of type ``exercise`` and hold HTML.
        notebook: the address of the page's notebook, in which a function can be written and
            checked; None where the site has none.
    """
    result: list[Token] = []
    one: Exercise | None = None
    for at, token in enumerate(tokens):
        if token.type == "paragraph_open" and one is None:
            one = _exercise(tokens[at + 1].content)
            if one is not None:
                result.append(_html(f'<div class="exercise" id="exercise-{_id(one)}">\n'))
        if one is not None and token.type == "html_block" and "<details>" in token.content:
            result.append(_html(_field(one, notebook)))
        if isinstance(one, Answer) and token.type == "inline":
            mark_shell(token)
        result.append(token)
        if one is not None and token.type == "html_block" and "</details>" in token.content:
            result.append(_html(f"{_solution(one)}</div>\n"))
            one = None
    return result


def _exercise(text: str) -> Exercise | None:
    """The exercise that a paragraph begins, where it has a check."""
    match = _NUMBER.match(text)
    if match is None:
        return None
    try:
        return exercise(match["number"])
    except Error:
        return None


def _html(text: str) -> Token:
    return Token("exercise", "", 0, content=text)


def _id(one: Exercise) -> str:
    return one.number.replace(".", "-")


def solution(number: str) -> tuple[str, str]:
    """What docs/solutions has between this exercise's comment and the next.

    Args:
        number: of the exercise, such as ``5.5``.

    Returns:
        The comment, which says why, and the code below it.

    Raises:
        ValueError: it has no such comment.
    """
    text = solutions_of(number.partition(".")[0])
    parts = re.split(r"^# (?=\w+\.\d+: )", text, flags=re.MULTILINE)
    part = next((part for part in parts if part.startswith(f"{number}: ")), None)
    if part is None:
        raise ValueError(f"docs/solutions has no comment '# {number}: …' with code below it")
    first, *lines = part.removeprefix(f"{number}: ").split("\n")
    more = [*itertools.takewhile(lambda line: line.startswith("# "), lines)]
    why = " ".join([first, *(line[2:] for line in more)])
    return why, "\n".join(lines[len(more) :]).strip()


def solutions_of(page: str) -> str:
    """The file of docs/solutions for a page of this number, such as ``5`` or ``9a``."""
    digits, letter = re.fullmatch(r"(\d+)([a-z]?)", page).groups()  # type: ignore[union-attr]  # every number is so
    return (ROOT / "docs/solutions" / f"{digits:>02}{letter}.py").read_text("utf-8")


def _solution(one: Exercise) -> str:
    why, code = solution(one.number)
    return (
        f'<details class="solution"><summary>Solution</summary>\n<p>{escape(why)}</p>\n'
        f"{code_block(code, 'python')}</details>\n"
    )


def _field(one: Exercise, notebook: str | None) -> str:
    """A form that ``static/exercises.js`` shows and answers; for a function, where to write it."""
    if not isinstance(one, Answer):
        link = f'<a href="{escape(notebook or "")}" download>This page as a notebook</a>'
        return f"<p>{link} has a cell that checks it.</p>\n" if notebook else ""
    name = f"answer-{_id(one)}"
    if one.choices:
        options = "".join(f"<option>{escape(choice)}</option>" for choice in one.choices)
        field = f'<select id="{name}"><option value="">choose</option>{options}</select>'
        label = "Your answer"
    else:
        field = f'<input id="{name}" autocomplete="off" spellcheck="false">'
        label = f"Your answer: {one.expects}"
    data = {
        "expected": _flat(one.expected),
        "tolerance": one.tolerance,
        "mistakes": [
            {"name": mistake.name, "wrong": _flat(mistake.wrong), "why": mistake.why}
            for mistake in one.mistakes
        ],
    }
    written = escape(json.dumps(data, ensure_ascii=False))
    return (
        f'<form class="answer" hidden data-answer="{written}">\n'
        f'<label for="{name}">{escape(label)}</label>\n{field}\n<button>Check</button>\n'
        f'<output for="{name}"></output>\n</form>\n'
    )


def _flat(value: Any) -> Any:
    """Numbers in a row, as texts where JSON has none; a choice as it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return [number for row in value for number in _flat(row)]
    return [float(value) if abs(value) < float("inf") else str(float(value))]


def question(settings: str) -> str:
    """Write the mark of a question; its choices follow it.

    Args:
        settings: what the comment says after ``question``.

    Raises:
        ValueError: the comment does not say which choice is right.
    """
    match = _RIGHT.fullmatch(settings)
    if match is None:
        raise ValueError("a question says which choice is right: <!-- question right=2 -->")
    return f'<div class="question" data-right="{match["number"]}"></div>\n'
