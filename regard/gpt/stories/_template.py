"""The template language of passages, for generation and parsing.

`{person}` is a slot: a word of the class `person`; `{person2}` is another one of the same class.
`[small|young]` is a choice among literal texts. A slot may have

- a form: `{person.their}` is "his" or "her"; with `!` the form follows from words before it;
- operations on the facts of the story, each a sign, a relation and what it is about:
  `=` states a fact, `?` is decided by one, `??` is decided by one as the answer to a question,
  `~` agrees with one, `-` and `+` change a number, `>` is the next of a sequence,
  `@` puts a thing where a person is.

`{person} gave the {thing} to {person2=holder thing}` states who holds the thing from then on.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache

_SLOT = re.compile(
    r"\{([a-z]+)(\d*)(?:\.(\w+))?(!)?((?:(?:=|\?\?|\?|~|-|\+|>|@)[a-z]+(?: \w+)*)*)\}"
)
_OPERATION = re.compile(r"(=|\?\?|\?|~|-|\+|>|@)([a-z]+)((?: \w+)*)")
_CHOICE = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Operation:
    """An operation of a slot on the facts: sign, relation and variables."""

    sign: str
    relation: str
    about: tuple[str, ...]


@dataclass(frozen=True)
class Slot:
    """A place in a template for a word of a class."""

    word_class: str
    variable: str
    form: str | None
    has_mark: bool  # whether the form follows from earlier words
    operations: tuple[Operation, ...]

    @property
    def takes_fact(self) -> bool:
        """True if a fact determines the word, rather than the word a fact."""
        return any(operation.sign in {"?", "??", ">"} for operation in self.operations)


Part = str | Slot


@cache
def parts(template: str) -> tuple[Part, ...]:
    """Parse a template without choices into literal texts and slots."""
    result: list[Part] = []
    start = 0
    for match in _SLOT.finditer(template):
        result.append(template[start : match.start()])
        word_class, number, form, mark, operations = match.groups()
        parsed = tuple(
            Operation(sign, relation, tuple(about.split()))
            for sign, relation, about in _OPERATION.findall(operations)
        )
        result.append(Slot(word_class, word_class + number, form, mark is not None, parsed))
        start = match.end()
    result.append(template[start:])
    literal = "".join(part for part in result if isinstance(part, str))
    assert not set(literal) & set("{}[]|"), template
    return tuple(part for part in result if part)


@cache
def choices(template: str) -> tuple[str | tuple[str, ...], ...]:
    """Return the pieces of a template, alternating fixed texts and tuples of choices."""
    pieces = _CHOICE.split(template)
    return tuple(tuple(p.split("|")) if i % 2 else p for i, p in enumerate(pieces))


def expand(template: str) -> list[str]:
    """Return all expansions of a template's choices."""
    options = [(p,) if isinstance(p, str) else p for p in choices(template)]
    return ["".join(pieces) for pieces in itertools.product(*options)]
