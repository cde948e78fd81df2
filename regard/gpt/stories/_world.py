"""The facts of a story, each with the words that stated it, and how sentences change them."""

from __future__ import annotations

from collections.abc import Mapping

from regard.gpt.stories._lexicon import NUMBERS, SEQUENCES, inflect
from regard.gpt.stories._story import Fact, Kind, Span
from regard.gpt.stories._template import Operation

KINDS = {
    "colour": Kind.BINDING,
    "coloured": Kind.BINDING,
    "material": Kind.BINDING,
    "made": Kind.BINDING,
    "species": Kind.BINDING,
    "pet": Kind.BINDING,
    "place": Kind.PLACE,
    "spot": Kind.PLACE,
    "holder": Kind.HOLDER,
    "count": Kind.COUNTING,
    "next": Kind.COUNTING,
    "step": Kind.COUNTING,
    "rank": Kind.COUNTING,
    "part": Kind.BINDING,
    "played": Kind.BINDING,
    "named": Kind.BINDING,
    "owner": Kind.BINDING,
    "wearer": Kind.BINDING,
    "spell": Kind.REPETITION,
    "line": Kind.REPETITION,
    "verse": Kind.REPETITION,
    "called": Kind.REPETITION,
    "addressed": Kind.SPEAKER,
    "condition": Kind.CAUSE,
    "needs": Kind.CAUSE,
}
FORM_KINDS = {
    **dict.fromkeys(("they", "them", "their", "self"), Kind.PRONOUN),
    **dict.fromkeys(("was", "is", "has"), Kind.AGREEMENT),
    "rhyme": Kind.RHYME,
    "remedy": Kind.CAUSE,
}
CONSTANT = {
    "colour",
    "coloured",
    "material",
    "made",
    "species",
    "pet",
    "called",
    "rank",
    "part",
    "played",
    "named",
    "owner",
    "wearer",
}


class World:
    """What a story has stated so far."""

    def __init__(self) -> None:
        self.facts: dict[tuple[str, ...], Fact] = {}

    def expected(self, operation: Operation, values: Mapping[str, str]) -> Fact | None:
        """Return the fact that decides the word of a slot; None where nothing decides it."""
        key = _key(operation, values)
        if operation.sign in {"?", "??", "~"}:
            return self.facts.get(key)
        if operation.sign == ">":
            return self._next(key)
        if operation.sign == "=" and operation.relation in CONSTANT:
            return self.facts.get(key)
        return None

    def apply(self, operation: Operation, word: str, values: Mapping[str, str], span: Span) -> None:
        """Let a word of a sentence, at `span`, change the facts."""
        relation, *about = key = _key(operation, values)
        before = self.facts.get(key)
        spans: tuple[Span, ...] = (span,)
        value = word
        if operation.sign in {"?", "??"}:
            return
        if operation.sign == "~" and before is not None:
            return
        if operation.sign in {"-", "+"}:
            if before is None:
                return
            change = NUMBERS.index(word) if word in NUMBERS else 0
            number = NUMBERS.index(before.value) + (change if operation.sign == "+" else -change)
            if not 0 <= number < len(NUMBERS):
                return
            value, spans = NUMBERS[number], (*before.spans, span)
        elif operation.sign == "@":
            if before is None:
                return
            key, about = (relation, word), [word]
            value, spans = before.value, before.spans
        elif relation == "step" and operation.sign == ">" and before is not None:
            spans = (*before.spans[-1:], span)
            value = f"{before.value.split()[-1]} {word}"
        self.facts[key] = Fact(relation, tuple(about), value, spans)
        if relation == "condition" and (remedy := inflect(value, "remedy", "condition")):
            self.facts["needs", *about] = Fact("needs", tuple(about), remedy, spans)

    def _next(self, key: tuple[str, ...]) -> Fact | None:
        before = self.facts.get(key)
        if before is None:
            return None
        if key[0] == "step":
            numbers = [NUMBERS.index(word) for word in before.value.split()]
            following = 2 * numbers[-1] - numbers[0]
            if len(numbers) < 2 or not 0 <= following < len(NUMBERS):
                return None
            word = NUMBERS[following]
        else:
            sequence = next((s for s in SEQUENCES if before.value in s), None)
            if sequence is None:
                return None
            word = sequence[(sequence.index(before.value) + 1) % len(sequence)]
        return Fact(before.relation, before.about, word, before.spans)


def _key(operation: Operation, values: Mapping[str, str]) -> tuple[str, ...]:
    return (operation.relation, *(values.get(name, name) for name in operation.about))
