"""How scenes are written down: a passage a line, beats apart by an empty line.

An indented line continues the line before it, ` / ` begins a new line of the story, and a hyphen
alone is a passage that says nothing.

A beat that begins with a line such as `<12>` is told with the variables of these numbers in any
order: `<12>` makes `{person} called {person2}` also `{person2} called {person}`. So the wording of
a passage does not tell which of two things it is about. `<12> twice` tells two such beats.

`<when>` stands for a time or nothing, `<who>` for a clause or nothing, of the first person, and
`<who2>` of the second: so a verb has its subject at many distances, and a name in between.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from regard.gpt.stories._lexicon import CLASSES

Scene = tuple[tuple[str, ...], ...]

_INSERTED = {
    "<when>": "[|At noon |After lunch |In the evening |Before long |At last |Then ]",
    "<who>": "[|||||||||||, who had come with {person2},|, who was taller than {person2},|, who "
    "stood next to {person2},|, who was looking for {person2},]",
    "<who2>": "[|||||||||||, who had come with {person},|, who was taller than {person},|, who "
    "stood next to {person},|, who was looking for {person},]",
}
_ORDERS = re.compile(r"<(\d+)>( twice)?\n")
_VARIABLE = re.compile(rf"(?<=[{{ ])({'|'.join((*CLASSES, 'name', 'line'))})(\d*)(?![a-z0-9])")


def scene(text: str) -> Scene:
    """Return the beats of a scene, each a choice among passages."""
    return tuple(beat for one in text.strip().split("\n\n") for beat in _beats(one))


def passages(text: str) -> tuple[str, ...]:
    """Passages to choose from."""
    for name, choice in _INSERTED.items():
        text = text.replace(name, choice)
    lines = text.strip().replace("\n    ", " ").split("\n")
    return tuple(
        "" if line == "-" else f"{line} ".replace(" / ", "\n").rstrip(" ") for line in lines
    )


def renumbered(template: str, numbers: Mapping[str, str]) -> str:
    """Return a passage whose variables have other numbers.

    >>> renumbered("{person} gave {person2=holder thing} the {thing}", {"1": "2", "2": "1"})
    '{person2} gave {person=holder thing2} the {thing2}'
    """

    def other(match: re.Match[str]) -> str:
        number = numbers.get(match[2] or "1", match[2] or "1")
        return match[1] + ("" if number == "1" else number)

    return re.sub(r"\{[^}]*\}", lambda slot: _VARIABLE.sub(other, slot[0]), template)


def _beats(text: str) -> list[tuple[str, ...]]:
    match = _ORDERS.match(text)
    if match is None:
        return [passages(text)]
    told = passages(text[match.end() :])
    orders = [dict(zip(match[1], order, strict=True)) for order in itertools.permutations(match[1])]
    beat = tuple(renumbered(passage, order) for passage in told for order in orders)
    return [beat, beat] if match[2] else [beat]
