"""Generates stories: an opening, some scenes, sometimes questions, an ending."""

from __future__ import annotations

from collections.abc import Iterator

from regard.gpt.stories._draw import Draw
from regard.gpt.stories._lexicon import CLASSES, gender
from regard.gpt.stories._story import Fact, Story
from regard.gpt.stories._teller import Teller
from regard.gpt.stories.scenes import (
    ENDINGS,
    GROUPS,
    INTRODUCTIONS,
    OPENINGS,
    QUESTIONS,
    SIGHTS,
    TRANSITIONS,
    lines,
)

_LENGTHS = (55, 60, 70, 90, 110, 130, 145, 160)  # words after which no new scene begins
_SCENES = 0.75  # fraction of stories with a single scene, which has few candidate words
_BETWEEN = 0.1  # fraction of the pauses in a scene with an unrelated sight


def story(seed: int) -> Story:
    """Return the story of a seed: the same text, to the byte, on every machine.

    Args:
        seed: a whole number, at least 0.

    Example:
        >>> from regard.gpt.stories import story
        >>> story(0).text == story(0).text, len(story(0).links) > 0
        (True, True)
    """
    if seed < 0:
        raise ValueError(f"seed is {seed}; a whole number that is at least 0 was expected")
    draw = Draw(seed)
    teller = Teller(draw, lines())
    children = children_of(draw)
    is_scene = draw.chance(_SCENES)
    if not is_scene:
        teller.tell(draw.one(OPENINGS), roles_of(draw, children))
    length = 0 if is_scene else draw.one(_LENGTHS)
    sights = draw.shuffled(SIGHTS)
    transitions: tuple[list[str], ...] = ([], draw.shuffled(TRANSITIONS), sights)
    for number, group in enumerate(dict.fromkeys(draw.shuffled(GROUPS))):
        roles = roles_of(draw, children)
        teller.tell("\n\n" if teller.text else "", roles)
        rest = draw.one(transitions) if number else []
        if rest:
            teller.tell(rest.pop() + " ", roles)
        for i, beat in enumerate(draw.one(group)):
            passage = draw.one(beat)
            is_open = i == 0 or teller.text.endswith(("\n", ' "'))
            if not is_open and sights and draw.chance(_BETWEEN):
                teller.tell(" " + sights.pop(), roles)
            teller.tell("" if is_open or not passage else " ", roles)
            teller.tell(passage, roles)
        if len(teller.text.split()) >= length:
            break
    if draw.chance(0.4):
        _ask(teller, draw, children)
    if not is_scene:
        teller.tell("\n\n" + draw.one(ENDINGS), roles_of(draw, children))
    facts = tuple(teller.world.facts.values())
    return Story(teller.text + "\n", tuple(teller.links), facts, seed)


def stories(seed: int, count: int) -> Iterator[Story]:
    """Yield the stories of the seeds from `seed` to `seed + count - 1`.

    Example:
        >>> from regard.gpt.stories import stories
        >>> [one.seed for one in stories(5, 3)]
        [5, 6, 7]
    """
    for number in range(seed, seed + count):
        yield story(number)


def corpus(seed: int, characters: int) -> list[str]:
    """Return texts of stories, from `seed` on, with at least so many characters in total.

    Example:
        >>> from regard.gpt.stories import corpus
        >>> sum(map(len, corpus(0, 1000))) >= 1000
        True
    """
    texts: list[str] = []
    total = 0
    while total < characters:
        texts.append(story(seed + len(texts)).text)
        total += len(texts[-1])
    return texts


def children_of(draw: Draw) -> list[str]:
    """Draw the names of three children, at least one girl and one boy."""
    while True:
        children = draw.shuffled(CLASSES["person"])[:3]
        if len({gender(child) for child in children}) == 2:
            return children


def roles_of(draw: Draw, children: list[str]) -> dict[str, str]:
    """Return the children as person, person2 and person3; the first two with different pronouns."""
    first, second, third = draw.shuffled(children)
    if gender(first) == gender(second):
        second, third = third, second
    return {"person": first, "person2": second, "person3": third}


def _ask(teller: Teller, draw: Draw, children: list[str]) -> None:
    """Ask for one to three facts."""
    askable = [fact for fact in teller.world.facts.values() if _is_askable(fact)]
    if not askable:
        return
    teller.tell("\n\n" + draw.one(INTRODUCTIONS), roles_of(draw, children))
    for fact in draw.shuffled(askable)[: 1 + draw.below(3)]:
        about, templates = QUESTIONS[fact.relation]
        teller.tell("\n" + draw.one(templates), {about: fact.about[0]})


def _is_askable(fact: Fact) -> bool:
    if fact.relation not in QUESTIONS:
        return False
    about, _ = QUESTIONS[fact.relation]
    return fact.about[0] in CLASSES.get(about, [about])
