"""Minimal pairs of short stories that differ in the deciding word and the decided last word.

A model that uses the deciding word gets both of a pair right; one that uses word order or wording
gives both the same answer. Their passages do not occur in the stories of `story(seed)`.
"""

from __future__ import annotations

from regard.gpt.stories._draw import Draw
from regard.gpt.stories._generate import children_of, roles_of
from regard.gpt.stories._story import Kind, Link, Story
from regard.gpt.stories._teller import Teller
from regard.gpt.stories.scenes import SIGHTS, Scene, lines, renumbered, scene

_OTHER = {"1": "2", "2": "1"}

# Groups of passages: the statement, an event, another mention, an earlier question, the question
# itself, to which only one word is right. The last passage is used as it is and with 1 and 2
# exchanged or, if it contains ` || `, in both forms. `twins` balances the passages in between.
_FRAMES: dict[Kind, tuple[Scene, ...]] = {
    Kind.PRONOUN: (
        scene("""
{person} and {person2} came in.
{person} sat next to {person2}.
There stood {person} with {person2}.

-

{person} smiled.

{person} sat down.

{person}, who was braver than {person2}, scratched {person.their!}
{person}, who was waiting for {person2}, shrugged {person.their!}
At the gate {person}, who had been sitting next to {person2}, put on {person.their!}
{person} smiled at {person2}, clapped {person.their!}
Then {person} came back and nearly jumped out of {person.their!}
Next to {person2} stood {person} and chewed {person.their!}
"""),
    ),
    Kind.BINDING: (
        scene("""
{person} had a {animal=species pet} called {pet=pet person}. {pet2=pet person2} was a
    {animal2=species pet2} and belonged to {person2}.
A {animal=species pet} called {pet=pet person} belonged to {person}, and {person2} had a
    {animal2=species pet2} called {pet2=pet person2}.
{person} came with a {animal=species pet} called {pet=pet person}, and {person2} came with a
    {animal2=species pet2} called {pet2=pet person2}.

-

{person} smiled.
The {animal} was very quiet.
{pet} was very quiet.

Then {person} whistled for {pet0?pet person}.

In the afternoon {person} whistled for {pet0?pet person}
On the way home {person} sang to {pet0?pet person}
At once {person} patted {pet0?pet person}
{person} turned round and stroked {pet0?pet person}
{person} said, "Let us go home." Then {person.they} whistled for {pet0?pet person}
The one that belonged to {person} was called {pet0?pet person}
"""),
        scene("""
On the shelf lay a {colour=colour thing} {thing=coloured colour} and a {colour2=colour thing2}
    {thing2=coloured colour2}.
{person} had a {colour=colour thing} {thing=coloured colour}. The {thing2=coloured colour2} of
    {person2} was {colour2=colour thing2}.
{adult3} bought a {colour=colour thing} {thing=coloured colour} for {person} and a
    {colour2=colour thing2} {thing2=coloured colour2} for {person2}.

-

The {thing} was rather heavy.
{person} smiled.

{person3} wanted the {colour} {thing?coloured colour}.

{person3} dreamed of the {colour} {thing?coloured colour}
At last {person3} bought the {colour} {thing?coloured colour}
On the way home {person3} took the {colour} {thing?coloured colour}
What had {person3} seen? The {thing} was certainly {colour?colour thing}
And so {person3} reached for the {colour} {thing?coloured colour}
"""),
    ),
    Kind.PLACE: (
        scene("""
{person} left a {quality} {thing} in the {place=place thing}. There was a {quality2} {thing2} in
    the {place2=place thing2}.
In the morning the {thing} was in the {place=place thing}. {adult3} kept a {quality2} {thing2} in
    the {place2=place thing2}.
{adult3} had put the {thing} into the {place=place thing} and the {thing2} into the
    {place2=place thing2}.

-
At noon {person3} carried the {thing} to the {place3=place thing}.
At noon {person3} brought the {thing2} into the {place3=place thing2}.

The {thing} was rather heavy.
{person3} went to the {place=place person3}.

{adult3} found the {thing} in the {place0?place thing}.

At bedtime {person} looked for the {thing}. Where was it? It was in the {place0?place thing}
At noon {person3} found the {thing} in the {place0?place thing}
{person3} knew that the {thing} was safe in the {place0?place thing}
After lunch {person3} came back and fetched the {thing} from the {place0?place thing}
"Where is the {thing}?" asked {adult3}. In the evening {person3} found the {thing} in the
    {place0?place thing}
"""),
    ),
    Kind.HOLDER: (
        scene("""
{person=holder thing} was carrying a {quality} {thing}, and {person2=holder thing2} had brought a
    {quality2} {thing2}.
The {quality} {thing} belonged to {person=holder thing}. {person2=holder thing2} had a {quality2}
    {thing2}.
There was a {quality} {thing} for {person=holder thing}, and there was a {quality2} {thing2} for
    {person2=holder thing2}.

-
At noon the {thing} went to {person3=holder thing}.
At noon the {thing2} went to {person3=holder thing2}.

{person} smiled.
The {thing} was rather heavy.

On the way home the {thing} was carried by {person0?holder thing}.

When it grew dark, the {thing} was still with {person0?holder thing}
After supper the {thing} was in the hands of {person0?holder thing}
If {adult3} had wanted the {thing}, you would have had to ask {person0?holder thing}
{person3} knew that the {thing} was carried by {person0?holder thing}
And so the {thing} went home with {person0?holder thing}
"""),
    ),
    Kind.REPETITION: (
        scene("""
{person} shouted, "{line=line person}" {person2} shouted, "{line2=line person2}"
At the gate {person} cried, "{line=line person}" At the well {person2} cried,
    "{line2=line person2}"

-

{person} smiled.

And {person} said it once more, "{line?line person}"

{person3} whispered it just like {person}, "{line?line person}"
The parrot had listened to {person} and said, "{line?line person}"
{adult3} remembered well what {person} had said, "{line?line person}"
"""),
        scene("""
{person} and {person2} were in the {place}.

-

{person} smiled.

-

{adult3} said to the parrot, "{line=line parrot}" At once it repeated, "{line?line parrot}"
{person3} shouted into the well, "{line=line parrot}" Back came the words, "{line?line parrot}"
"""),
    ),
    Kind.AGREEMENT: (
        scene("""
{person} and {person2} were in the {place}.

-

{person} smiled.

-

By the river the {animals} that played with the {animal} {animals.was!} || By the river the
    {animal} that played with the {animals} {animal.was!}
{adult3} said, "The {animals} next to the {animal} {animals.has!} || {adult3} said, "The {animal}
    next to the {animals} {animal.has!}
In the shed the {items} beside the {thing} {items.was!} || In the shed the {thing} beside the
    {items} {thing.was!}
"""),
    ),
    Kind.QUOTATION: (
        scene("""
{person} and {person2} were in the {place}.

-

{person} smiled.

-

On the box somebody had written ({person} and {person3})| || On the box somebody had written
    "{person} and {person3}"|
At the end of the story stood ({person2} with {person3})| || At the end of the story stood
    "{person2} with {person3}"|
"""),
    ),
    Kind.RHYME: (
        scene("""
{person} and {person2} were in the {place}.

-

{person} smiled.

-

{person3} sang: / "I met a little {animal=verse first}, / I met a little {animal2=verse second};
    / the first may have a {animal.rhyme!}
{adult3} knew a song: / "Here comes a dancing {animal=verse first}, / good evening, little
    {animal2=verse second}; / the one was by the {animal.rhyme!}
"""),
    ),
    Kind.COUNTING: (
        scene("""
{person} and {person2} were in the {place}.

-

{person} smiled.

-

It was {day=next days}, and not {day2}, as {person2} said. The day after that was {day0>next days}
{person} was ill on {day2}, but well on {day=next days}. The next day was {day0>next days}
{person} had {number=count items} {items}, and {person2} had {number5=count items2} {items2}.
    {adult3} counted the {items} and came to {number0?count items} || {person} had
    {number=count items} {items}, and {person2} had {number5=count items2} {items2}. {adult3}
    counted the {items2} and came to {number0?count items2}
"""),
    ),
    Kind.ANSWER: (
        scene("""
{person=holder thing} was carrying a {colour=colour thing} {thing}. {person2=holder thing2} had
    brought a {colour2=colour thing2} {thing2}.
The {colour=colour thing} {thing} belonged to {person=holder thing}, and the
    {colour2=colour thing2} {thing2} belonged to {person2=holder thing2}.

-
At noon the {thing} went to {person3=holder thing}.
At noon the {thing2} went to {person3=holder thing2}.

{person} smiled.
The {thing} was rather heavy.

Who had the {thing} in the end? {person0??holder thing}.

Before you go to sleep, who had the {thing} last? It was {person0??holder thing}
"Did you listen?" asked {adult3}. Who had the {thing} at the end of the story? It was
    {person0??holder thing}
And now, what colour was the {thing}? It was {colour0??colour thing}
"""),
    ),
    Kind.SPEAKER: (
        scene("""
{person} and {person2} were in the {place}.
{person} sat next to {person2}.

-

{person} smiled.

"Not me," said {person}.

"Are you asleep, {person=addressed now}?" asked {person3}. "Not at all," said
    {person0?addressed now}
{person3} asked, "Have you packed, {person=addressed now}?" "I am coming," answered
    {person0?addressed now}
"""),
    ),
    Kind.CAUSE: (
        scene("""
{person} was {condition=condition person}, and {person2} felt {condition2=condition person2}.
After the long walk {person} felt {condition=condition person}. {person2} was
    {condition2=condition person2}.

-

{person} smiled.

What {person} needed was {remedy0?needs person}.

At once {adult3} knew what {person} needed, and that was {remedy0?needs person}
At supper for {person} there was {remedy0?needs person}
And so what {person} needed was {remedy0?needs person}
"""),
    ),
}


def twins(kind: Kind, count: int, seed: int = 0) -> list[tuple[Story, Story]]:
    """Generate pairs of stories whose last word, or line, is decided by the one word that differs.

    The first of a pair asks for the entity named first, the second for the one named second. The
    pairs are balanced in the number of sentences in between (0 to 3), in which of the two was
    named last, and in which was asked for before.

    Args:
        kind: the kind of their link.
        count: number of pairs; a multiple of 36 is balanced.
        seed: seed of the words.

    Returns:
        Pairs of stories that end with the decided words, which are their only links.

    Example:
        >>> from regard.gpt.stories import Kind, twins
        >>> (one, other), *_ = twins(Kind.HOLDER, 1)
        >>> one.text[slice(*one.links[0].decided)] != other.text[slice(*other.links[0].decided)]
        True
    """
    return [_pair(kind, number, seed) for number in range(count)]


def _pair(kind: Kind, number: int, seed: int) -> tuple[Story, Story]:
    """Generate a pair with the same draws; retry with another seed if both answers are equal."""
    for attempt in range(1000):
        key = (seed * 100_003 + number) * 1009 + attempt
        one, other = (_tell(kind, number, key, is_other=is_other) for is_other in (False, True))
        if _answer(one) != _answer(other):
            return one, other
    raise AssertionError(f"no pair of {kind}")


def _answer(story: Story) -> str:
    return story.text[story.links[0].decided[0] :]


def _tell(kind: Kind, number: int, key: int, *, is_other: bool) -> Story:
    draw = Draw(key)
    teller = Teller(draw, lines())
    values = roles_of(draw, children_of(draw))
    stated, happens, named, before, asked = draw.one(_FRAMES[kind])
    teller.tell(draw.one(stated), values)
    for passage in (
        draw.one(happens),
        *draw.shuffled(SIGHTS)[: number % 4],
        _of(draw.one(before), number // 12 % 3),
        _of(draw.one(named), number // 4 % 3),
    ):
        if passage:
            teller.tell(" " + passage, values)
    told = len(teller.links)
    forms = draw.one(asked).split(" || ")
    last = forms[-1] if is_other and len(forms) > 1 else forms[0]
    if is_other and len(forms) == 1:
        last = renumbered(last, _OTHER)
    teller.draw_words(forms[0].rstrip("|"), values)  # the same words, in whatever order
    start = len(teller.text)
    teller.tell(" " + last.rstrip("|"), values)
    links = [link for link in teller.links[told:] if link.kind is kind and link.decided[0] > start]
    decided = _last_words(links, kind)
    return Story(teller.text[: decided[-1].decided[1]], tuple(decided), (), key)


def _of(passage: str, which: int) -> str:
    """Nothing, what is said of the first, or the same of the second."""
    return ("", passage, renumbered(passage, _OTHER))[which]


def _last_words(links: list[Link], kind: Kind) -> list[Link]:
    """Return the link of the last word; of a line that is repeated those of all its words."""
    if kind is not Kind.REPETITION:
        return links[-1:]
    return links
