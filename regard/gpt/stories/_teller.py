"""Writes passages one after another, and tracks facts and links between words."""

from __future__ import annotations

import re
from collections.abc import Mapping

from regard.gpt.stories._draw import Draw
from regard.gpt.stories._lexicon import CLASSES, SUITABLE, inflect, made_up_names
from regard.gpt.stories._story import CLOSING, Fact, Kind, Link, Span
from regard.gpt.stories._template import Operation, Slot, choices, parts
from regard.gpt.stories._world import FORM_KINDS, KINDS, World

_SENTENCE_START = re.compile(r'(?:[.!?]\s+|\.["\')]\s+|\n|(?:^|[\s(])")$')
_ARTICLE = re.compile(r"\b[aA] $")


class Teller:
    """A story under construction: its text, links and world."""

    def __init__(self, draw: Draw, lines: list[str]) -> None:
        self.draw = draw
        self.text = ""
        self.links: list[Link] = []
        self.world = World()
        self._mentions: dict[tuple[str, str], Span] = {}  # class and word → where it was last named
        self._used: set[str] = set()
        self._open: list[tuple[str, int]] = []  # quotation marks and brackets
        self._marks: dict[str, int] = {}  # opening mark → where it stood last
        self._drawable = {**CLASSES, "name": made_up_names(), "line": lines}

    def tell(self, template: str, values: dict[str, str]) -> None:
        """Add a passage; variables without a value are drawn and stored in `values`."""
        start = len(self.text)
        pieces = choices(template)
        chosen = "".join(p if isinstance(p, str) else self.draw.one(p) for p in pieces)
        self.draw_words(chosen, values)
        for part in parts(chosen):
            if isinstance(part, str):
                self._write_literal(part)
            else:
                self._write_slot(part, values, start)

    def draw_words(self, template: str, values: dict[str, str]) -> None:
        """Draw values for the free variables of a passage without choices."""
        for part in parts(template):
            if isinstance(part, Slot) and part.variable not in values and _is_free(part):
                values[part.variable] = self._draw_word(part)

    def _write_literal(self, text: str) -> None:
        for character in text:
            position = len(self.text)
            self.text += character
            if self._open and character == CLOSING[self._open[-1][0]]:
                self._close(*self._open.pop(), position)
            elif character in CLOSING:
                self._open.append((character, position))
                self._marks[character] = position

    def _close(self, mark: str, opened: int, position: int) -> None:
        inside = self.text[opened + 1 : position]
        if mark == '"' and inside[-1] == ",":
            return  # the sentence continues; any of its commas might end the speech
        other = "(" if mark == '"' else '"'
        decoys: tuple[Span, ...] = ()
        if other in self._marks:
            decoys = ((self._marks[other], self._marks[other] + 1),)
        alternatives = tuple(CLOSING[other] for _ in decoys)
        deciding = ((opened, opened + 1),)
        self.links.append(
            Link(Kind.QUOTATION, (position, position + 1), deciding, decoys, alternatives)
        )

    def _starts_sentence(self) -> bool:
        return not self.text or _SENTENCE_START.search(self.text[-5:]) is not None

    def _write_slot(self, slot: Slot, values: dict[str, str], start: int) -> None:
        fact = self._decided_by(slot, values)
        if slot.variable not in values:
            values[slot.variable] = fact.value if fact else self._number(slot, values)
        word = values[slot.variable]
        if slot.form:
            self._write_form(slot, word, start)
            return
        assert fact is None or fact.value == word, (slot, fact, word)
        span = self._write_word(word)
        for operation in slot.operations:
            self._link_fact(operation, fact, slot, span)
            self.world.apply(operation, word, values, span)
        self._mentions[slot.word_class, word] = span
        if slot.variable.endswith("0"):  # its value comes from a fact, each time again
            del values[slot.variable]

    def _decided_by(self, slot: Slot, values: Mapping[str, str]) -> Fact | None:
        for operation in slot.operations:
            fact = self.world.expected(operation, values)
            if fact is not None:
                return fact
            assert operation.sign not in {"?", "??"}, (slot, values)
        return None

    def _draw_word(self, slot: Slot) -> str:
        relation = slot.operations[0].relation if slot.operations else ""
        items = SUITABLE.get(
            f"{slot.word_class} {relation}".strip(), self._drawable[slot.word_class]
        )
        unused = [word for word in items if word not in self._used] or items
        word = self.draw.one(unused)
        self._used.add(word)
        return word

    def _number(self, slot: Slot, values: Mapping[str, str]) -> str:
        for operation in slot.operations:
            if operation.sign == "-":
                key = ("count", *(values.get(name, name) for name in operation.about))
                there = CLASSES["number"].index(self.world.facts[key].value)
                return CLASSES["number"][2 + self.draw.below(there - 3)]
            if operation.sign == "+":
                return CLASSES["number"][2 + self.draw.below(5)]
            before = self.world.facts.get((operation.relation, *operation.about))
            if operation.sign == ">" and before is not None:
                step = self.draw.one([-2, -1, 1, 2])
                return CLASSES["number"][CLASSES["number"].index(before.value) + step]
        return CLASSES["number"][7 + self.draw.below(6)]

    def _write_word(self, word: str) -> Span:
        if word[0] in "aeiou" and _ARTICLE.search(self.text[-3:]):
            self.text = self.text[:-1] + "n "
        start = len(self.text)
        self.text += word[0].upper() + word[1:] if self._starts_sentence() else word
        return start, len(self.text)

    def _write_form(self, slot: Slot, entity: str, start: int) -> None:
        assert slot.form is not None
        word = inflect(entity, slot.form, slot.word_class)
        assert word is not None, (slot, entity)
        span = self._write_word(word)
        if not slot.has_mark:
            return
        kind = FORM_KINDS[slot.form]
        rivals = {}
        for (word_class, other), place in self._mentions.items():
            if kind is not Kind.PRONOUN and place[0] < start:
                continue
            if not _comparable(kind, slot.word_class, word_class):
                continue
            form = inflect(other, slot.form, word_class)
            if form is not None and form != word:
                rivals[place] = form
        if rivals:
            deciding = (self._mentions[slot.word_class, entity],)
            alternatives = tuple(rivals.values())
            self.links.append(Link(kind, span, deciding, tuple(rivals), alternatives))

    def _link_fact(self, operation: Operation, fact: Fact | None, slot: Slot, span: Span) -> None:
        if fact is None or not slot.takes_fact:
            return
        if operation.relation == "line":
            self._link_line(fact, span)
            return
        kind = Kind.ANSWER if operation.sign == "??" else KINDS[operation.relation]
        candidates = {
            place: word
            for (word_class, word), place in self._mentions.items()
            if word_class == slot.word_class
        }
        if operation.relation == "needs":  # not a word of the text, but inferred from one
            others = [f for f in self.world.facts.values() if f.relation == "needs"]
            candidates = {other.spans[-1]: other.value for other in others}
        rivals = {
            place: word
            for place, word in candidates.items()
            if word != fact.value and place not in fact.spans
        }
        if rivals or kind is Kind.COUNTING:
            alternatives = tuple(rivals.values())
            self.links.append(Link(kind, span, fact.spans, tuple(rivals), alternatives))

    def _link_line(self, fact: Fact, span: Span) -> None:
        """Link the words of a repeated line; the other words of all lines are their decoys."""
        lines = [f.spans[0] for f in self.world.facts.values() if f.relation == "line"]
        candidates = [place for line in lines for place in self._words_in(line)]
        for decided, source in zip(
            self._words_in(span), self._words_in(fact.spans[0]), strict=True
        ):
            word = self._text_at(source).lower()
            decoys = tuple(c for c in candidates if self._text_at(c).lower() != word)
            alternatives = tuple(self._text_at(decoy) for decoy in decoys)
            self.links.append(Link(Kind.REPETITION, decided, (source,), decoys, alternatives))

    def _words_in(self, span: Span) -> list[Span]:
        matches = re.finditer(r"[A-Za-z']+", self._text_at(span))
        return [(span[0] + match.start(), span[0] + match.end()) for match in matches]

    def _text_at(self, span: Span) -> str:
        return self.text[slice(*span)]


def _is_free(slot: Slot) -> bool:
    """Return whether any word of its class may stand in a slot."""
    return not slot.takes_fact and slot.word_class != "number"


def _comparable(kind: Kind, mine: str, other: str) -> bool:
    if kind is Kind.PRONOUN:
        return other in {"person", "adult", "animal", "pet"}
    if kind is Kind.AGREEMENT:
        return other in {"animal", "animals", "items", "thing", "person"}
    return mine == other
