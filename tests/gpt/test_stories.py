"""The world of stories: the same everywhere, links that hold, a checker that sees what is wrong."""

import ast
import collections
import hashlib
import itertools
import re
import sys
from pathlib import Path

import pytest

from regard.gpt import stories as world
from regard.gpt.stories import (
    Kind,
    OrderGuesser,
    check,
    corpus,
    review,
    stories,
    story,
    twins,
)
from regard.gpt.stories._draw import Draw
from regard.gpt.stories._lexicon import (
    BOYS,
    CLASS_OF,
    CLASSES,
    GIRLS,
    MEN,
    NUMBERS,
    WOMEN,
    made_up_names,
)
from regard.gpt.stories._wordings import vocabulary
from regard.gpt.stories.scenes import renumbered

WORD = re.compile(r"[A-Za-z]+(?:[-'][a-z]+)*")
TOKEN = re.compile(r"\n+|[A-Za-z]+(?:-[a-z]+)*|'[a-z]+|[^\sA-Za-z]")
# What stands for itself: the decided word is the deciding one.
COPIES = {Kind.PLACE, Kind.HOLDER, Kind.REPETITION, Kind.ANSWER, Kind.SPEAKER, Kind.BINDING}


@pytest.fixture(scope="module")
def sample():
    return list(stories(0, 700))


def text_at(one, span):
    return one.text[slice(*span)]


def linked(sample):
    """Every link with its story."""
    return [(one, link) for one in sample for link in one.links]


def with_word(one, span, word):
    return one.text[: span[0]] + word + one.text[span[1] :]


@pytest.mark.parametrize(
    ("seed", "digest"),
    [
        (0, "a69354da3c50865e"),
        (1, "3aa45d64834b6b43"),
        (2, "3202c8330f14723c"),
        (3, "e3a63d92cf20bc04"),
    ],
)
def test_a_seed_is_a_story_to_the_byte(seed, digest):
    assert hashlib.sha256(story(seed).text.encode("ascii")).hexdigest()[:16] == digest


def test_many_seeds_are_the_same_stories_everywhere(sample):
    texts = "".join(one.text for one in sample[:500])
    assert hashlib.sha256(texts.encode("ascii")).hexdigest()[:16] == "9008e18eca2a2345"


def test_a_story_does_not_depend_on_those_told_before():
    assert [one.text for one in stories(5, 3)] == [story(seed).text for seed in (5, 6, 7)]
    assert [one.seed for one in stories(5, 3)] == [5, 6, 7]


def test_a_corpus_has_at_least_so_many_characters():
    texts = corpus(3, 5000)
    assert sum(map(len, texts)) >= 5000 > sum(map(len, texts[:-1]))
    assert texts[0] == story(3).text


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ValueError, match="seed is -1"):
        story(-1)


def test_draws_stay_inside_and_reach_everything():
    draw = Draw(0)
    assert {draw.one("abc") for _ in range(100)} == set("abc")
    assert sorted(draw.shuffled(range(7))) == list(range(7))
    assert 0 < sum(draw.chance(0.5) for _ in range(100)) < 100


def test_stories_are_short_and_rich_in_words(sample):
    lengths = [len(one.text.split()) for one in sample]
    assert min(lengths) >= 10  # a scene
    assert max(lengths) <= 300
    invented = {name.lower() for name in made_up_names()}
    words = {word.lower() for one in sample for word in WORD.findall(one.text)}
    assert len(words - invented) >= 1500


def test_the_cat_sits_on_the_mat():
    assert "The cat sat on the mat." in story(1075).text


def test_sentences_begin_with_capitals_and_speech_is_one_sentence(sample):
    for one in sample:
        assert not re.search(r"[.?]\s+[a-z]|^[a-z]| [,.?!]|  |,[.,]|\.\.", one.text), one.text
        assert not re.search(r"\n\n[a-z]", one.text), one.text
        for speech in re.findall(r'"([^"]*)"', one.text):
            assert not re.search(r"[.!?](?!$)", speech), speech


def test_spans_are_words_or_marks_and_decided_comes_last(sample):
    for one in sample:
        assert list(one.links) == sorted(one.links, key=lambda link: link.decided)
        for link in one.links:
            assert len(link.decoys) == len(link.alternatives)
            assert link.deciding
            for span in (link.decided, *link.deciding, *link.decoys):
                start, stop = span
                assert stop - start == 1 or WORD.fullmatch(text_at(one, span)), text_at(one, span)
                assert not one.text[start - 1 : start + 1].isalpha() or start == 0
                assert not one.text[stop - 1 : stop + 1].isalpha()
            assert all(stop <= link.decided[0] for _, stop in (*link.deciding, *link.decoys))


def test_decoys_are_candidates_that_would_decide_otherwise(sample):
    for one, link in linked(sample):
        assert link.decoys or link.kind in {Kind.QUOTATION, Kind.COUNTING}
        decided = text_at(one, link.decided).lower()
        assert decided not in {word.lower() for word in link.alternatives}
        assert not set(link.decoys) & set(link.deciding)


def test_each_kind_is_in_one_of_twenty_stories(sample):
    counts = collections.Counter(
        kind for one in sample for kind in {link.kind for link in one.links}
    )
    assert {kind: counts[kind] for kind in Kind if counts[kind] < len(sample) / 20} == {}


def test_decided_words_are_what_the_deciding_words_say(sample):
    names = {**dict.fromkeys(GIRLS + WOMEN, 0), **dict.fromkeys(BOYS + MEN, 1)}
    pronouns = [{"she", "her", "herself"}, {"he", "him", "his", "himself"}, {"it", "its", "itself"}]
    closing = {'"': '"', "(": ")"}
    plural = {"were", "are", "have"}
    for one, link in linked(sample):
        decided, deciding = text_at(one, link.decided), text_at(one, link.deciding[-1])
        if link.kind is Kind.PRONOUN:
            assert decided.lower() in pronouns[names.get(deciding, 2)]
        if link.kind in COPIES:
            assert decided.lower() == deciding.lower()
        if link.kind is Kind.QUOTATION:
            assert decided == closing[deciding]
        if link.kind is Kind.AGREEMENT:
            is_plural = deciding in CLASSES["animals"] + CLASSES["items"]
            assert (decided in plural) == is_plural


def test_counted_words_are_the_next_or_the_sum_of_those_before(sample):
    for one, link in linked(sample):
        if link.kind is not Kind.COUNTING:
            continue
        decided, *deciding = (text_at(one, span).lower() for span in (link.decided, *link.deciding))
        if deciding[0] in NUMBERS:
            decided, first, *rest = (NUMBERS.index(word) for word in (decided, *deciding))
            # some less or more, or as far again as the last step; some less a few and a few more
            near = {first - rest[0], first + rest[0], 2 * rest[0] - first} if rest else {first}
            assert decided in ({first - rest[0] + rest[1]} if len(rest) > 1 else near)
        else:
            sequences = [[word.lower() for word in CLASSES[c]] for c in ("day", "month", "season")]
            nexts = {s[i - 1]: s[i] for s in sequences for i in range(len(s))}
            assert decided == nexts.get(deciding[0], deciding[0])  # ranks are copied


def test_facts_are_what_the_text_says_where_they_were_stated(sample):
    for one in sample:
        for fact in one.facts:
            if fact.relation in {"count", "step", "line", "needs"}:
                continue
            assert text_at(one, fact.spans[-1]).lower() == fact.value.lower()


def test_the_checker_reads_every_story_whole_and_finds_nothing_wrong(sample):
    for one in sample[:300]:
        seen = review(one.text)
        assert (seen.mistakes, seen.unparsed) == ((), ()), one.seed


@pytest.mark.parametrize("kind", list(Kind))
def test_the_checker_sees_what_a_decoy_would_say(sample, kind):
    for one in sample[:50]:
        for link in (link for link in one.links if link.kind is kind):
            for word in link.alternatives:
                assert check(with_word(one, link.decided, word)), (one.seed, link)


def test_the_checker_sees_a_mark_that_is_missing(sample):
    for one in sample[:100]:
        for link in (link for link in one.links if link.kind is Kind.QUOTATION):
            assert check(with_word(one, link.decided, ""))


WRONG = {
    "The cat sat on the mat. Tom called softly, but the cat would not leave the shelf.": "mat",
    "Then Anna put on her boots, and Tom put on her shoes.": "his",
    "The circus came to town on Monday. Tom could not go until the day after, which was Friday.": (
        "Tuesday"
    ),
    "Tom had a dog called Biscuit, and Anna had a cat called Pepper. "
    "Pepper was a very clever dog. Biscuit was a rather lazy dog.": "cat",
    "In the shop window there were a red kite and a blue drum. "
    "Anna wanted the blue kite. Tom liked the red kite better.": "drum",
    "There were nine apples and ten eggs in the cupboard. Anna took three of the apples and hid "
    "them. How many apples were left? There were four.": "six",
    "They sang an song.": "a",
    'Tom said, "Here I am.': "a closing mark",
}


@pytest.mark.parametrize(("text", "expected"), WRONG.items())
def test_the_checker_says_what_the_word_should_be(text, expected):
    assert [mistake.expected for mistake in check(text)] == [expected]


def test_sentences_of_another_world_are_unread_and_no_mistakes():
    result = review("The cat sat on the mat. Stocks fell sharply on Friday. What a day it was!")
    assert result.mistakes == ()
    assert len(result.unparsed) == 1


def test_any_text_can_be_read(sample):
    draw = Draw(1)
    for one in sample[:50]:
        words = one.text.split(" ")
        for text in (" ".join(draw.shuffled(words)), one.text[: draw.below(len(one.text))]):
            assert all(start < stop <= len(text) for start, stop in review(text).unparsed)
    for text in ("", '"', '("', ")", "x" * 1000, '"Who' * 50, "\n\n", "Äh — 漢字 12 …"):
        check(text)


def test_every_word_has_one_class_and_made_up_names_are_no_words():
    words = [word.lower() for words in CLASSES.values() for word in words]
    assert [word for word, count in collections.Counter(words).items() if count > 1] == []
    assert {name.lower() for name in made_up_names()} & (vocabulary() | set(words)) == set()


def test_the_word_before_does_not_decide():
    following = collections.defaultdict(collections.Counter)
    for one in stories(10_000, 700):
        for left, right in itertools.pairwise(TOKEN.findall(one.text)):
            following[left][right] += 1
    right, seen = collections.Counter(), collections.Counter()
    for one in stories(0, 200):
        tokens = list(TOKEN.finditer(one.text))
        places = {token.start(): i for i, token in enumerate(tokens)}
        for link in one.links:
            before = following[tokens[places[link.decided[0]] - 1].group()]
            guess = before.most_common(1)[0][0] if before else ""
            right[link.kind] += guess == text_at(one, link.decided)
            seen[link.kind] += 1
    # A question mark is mostly speech, and the words of a line follow one another.
    often = {kind: right[kind] / seen[kind] for kind in Kind if right[kind] / seen[kind] > 0.3}
    assert set(often) <= {Kind.QUOTATION, Kind.REPETITION}
    assert max(often.values()) < 0.6


def test_nothing_else_can_stand_where_a_word_is_decided(sample):
    """After the same six words, up to their classes, there is always a word of the same class."""
    invented = {name.lower() for name in made_up_names()}
    following = collections.defaultdict(set)
    decided = {}
    for one in sample:
        kinds = {link.decided[0]: link.kind for link in one.links}
        tokens = list(TOKEN.finditer(one.text))
        words = [token.group().strip(" ").lower() for token in tokens]
        classes = ["name" if word in invented else CLASS_OF.get(word, word) for word in words]
        for i, token in enumerate(tokens[6:], start=6):
            before = tuple(classes[i - 6 : i])
            following[before].add(classes[i])
            if token.start() in kinds:
                decided[before] = kinds[token.start()]
    # Rhymes and the words of repeated lines are of several classes.
    open_kinds = {Kind.REPETITION, Kind.RHYME}
    assert {
        (kind, before): following[before]
        for before, kind in decided.items()
        if kind not in open_kinds and len(following[before]) > 1
    } == {}


# In these the words that could decide stand in either order, whatever the passage.
EITHER_ORDER = {Kind.BINDING, Kind.PLACE, Kind.HOLDER, Kind.CAUSE, Kind.ANSWER, Kind.SPEAKER}


@pytest.fixture(scope="module")
def guesser():
    return OrderGuesser(stories(10_000, 500))


def test_neither_the_order_nor_the_passage_decides(sample, guesser):
    """A guesser that knows all passages and every word's place, and no word, is near chance."""
    right, seen, chance = collections.Counter(), collections.Counter(), collections.Counter()
    for one, link in linked(sample[:500]):
        right[link.kind] += guesser.is_right(one, link)
        seen[link.kind] += 1
        chance[link.kind] += 1 / (1 + len(set(link.alternatives)))
    # Chance is that of a draw among all candidates; a passage leaves out some of them, such as who
    # has given a thing away. Before things were asked for in either order it was 0.94 to 1.
    for kind in EITHER_ORDER:
        assert right[kind] / seen[kind] < min(0.6, chance[kind] / seen[kind] + 0.25), kind
    assert right[Kind.PRONOUN] / seen[Kind.PRONOUN] < 0.7


def test_an_order_guesser_gets_right_what_order_decides(sample, guesser):
    """It is a control only if it finds an order where there is one: rhymes come line by line."""
    rhymes = [one for one in linked(sample[:300]) if one[1].kind is Kind.RHYME]
    assert sum(guesser.is_right(*rhyme) for rhyme in rhymes) > 0.9 * len(rhymes)


def classes_of(text):
    words = [match.group() for match in TOKEN.finditer(text)]
    return " ".join(CLASS_OF.get(word.lower(), word) for word in words)


@pytest.mark.parametrize("kind", list(Kind))
def test_twins_differ_where_the_deciding_word_is_swapped_and_are_of_no_story(sample, kind):
    told = "\n".join(classes_of(one.text) for one in sample)
    for pair in twins(kind, 36):
        texts = [one.text[: one.links[0].decided[0]] for one in pair]
        answers = [one.text[one.links[0].decided[0] :] for one in pair]
        assert answers[0] != answers[1]
        assert all(link.kind is kind for one in pair for link in one.links)
        same = next(i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b)
        if kind is not Kind.REPETITION:  # there the word may be a line
            assert len({len(text[same:].split()) for text in texts}) == 1
        asked = max(texts[0].rfind(". ", 0, same), texts[0].rfind(".\n", 0, same)) + 1
        for text in texts:
            assert classes_of(text[asked:]) not in told, text[asked:]


def test_twins_are_balanced_in_distance_in_what_was_named_last_and_in_what_was_asked_before():
    pairs = twins(Kind.HOLDER, 36)
    lengths = collections.Counter(one.text.count(".") for one, _ in pairs)
    assert len(lengths) >= 5
    assert twins(Kind.HOLDER, 36) == pairs
    assert twins(Kind.HOLDER, 36, seed=1) != pairs
    firsts = [pair[0].text for pair in pairs]
    assert sum("On the way home the" in text for text in firsts) == 24  # of one or of the other


def test_numbers_of_variables_are_exchanged_and_names_of_relations_are_not():
    template = "{animal=species pet} and {pet2?pet person2}, {thing.was!}, {place0?place thing}"
    assert renumbered(template, {"1": "2", "2": "1"}) == (
        "{animal2=species pet2} and {pet?pet person}, {thing2.was!}, {place0?place thing2}"
    )


def test_the_world_needs_the_standard_library_alone():
    for path in Path(world.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                package = node.module.split(".")[0]
                assert node.module.startswith("regard.gpt.stories") or (
                    package in sys.stdlib_module_names
                )
