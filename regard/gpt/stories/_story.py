"""The data of a story: its text, links between words, and facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Span = tuple[int, int]


CLOSING = {'"': '"', "(": ")"}  # opening mark → closing mark


class Kind(Enum):
    """The kind of a link; the value explains it in a sentence.

    Example:
        >>> from regard.gpt.stories import Kind
        >>> Kind.RHYME.value
        'The end of a line rhymes with the line that it belongs to.'
    """

    PRONOUN = "A pronoun agrees with the name that it stands for: Anna shook her head."
    BINDING = "What was bound together stays together: a red kite is the red kite later on."
    PLACE = "A person or a thing is where the last move took it."
    HOLDER = "A thing is with the last person who received it."
    AGREEMENT = "A verb agrees with its subject, even where another noun stands between them."
    QUOTATION = "A quotation mark or bracket that was opened is closed."
    REPETITION = "Words that are repeated are the same words in the same order."
    RHYME = "The end of a line rhymes with the line that it belongs to."
    COUNTING = "Numbers, days and ranks follow from those before them."
    ANSWER = "The answer to a question is what the story said."
    SPEAKER = "Who was spoken to by name is the one who answers."
    CAUSE = "A condition has its consequence: who was thirsty gets water."


@dataclass(frozen=True)
class Link:
    """A word of a story that follows from earlier words.

    Spans are `(start, stop)` in characters of the story's text.

    Example:
        >>> from regard.gpt.stories import story
        >>> link = story(0).links[0]
        >>> link.decided > link.deciding[0]  # it follows in the text, too
        True
    """

    kind: Kind
    decided: Span  # the word that follows
    deciding: tuple[Span, ...]  # the earlier words that it follows from
    decoys: tuple[Span, ...]  # earlier candidates that do not decide
    alternatives: tuple[str, ...]  # for each decoy, the word that would follow from it


@dataclass(frozen=True)
class Fact:
    """A fact of a story: relation, arguments, value, and the words that state it.

    Example:
        >>> from regard.gpt.stories import story
        >>> one = story(0)
        >>> all(one.text[slice(*span)] for fact in one.facts for span in fact.spans)
        True
    """

    relation: str
    about: tuple[str, ...]
    value: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Story:
    """A story with its links, in the order of their decided words, and the facts at its end.

    Example:
        >>> from regard.gpt.stories import story
        >>> one = story(0)
        >>> one.seed, one.text[-1].isspace()
        (0, True)
    """

    text: str
    links: tuple[Link, ...]
    facts: tuple[Fact, ...]
    seed: int
