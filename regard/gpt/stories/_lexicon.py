"""The words of the world by class, and their properties: gender, number, rhyme, remedy."""

from __future__ import annotations

from collections.abc import Mapping


def _words(text: str) -> list[str]:
    return text.split()


GIRLS = _words("Anna Lily Emma Clara Nora Mia Ella Lucy Ruth Ida Zoe Jane Olivia Hannah Leila")
BOYS = _words("Tom Ben Max Leo Sam Oscar Finn Noah Paul Theo Adam Oliver Felix George Henry")
WOMEN = ["Grandma", "Mum"]
MEN = ["Grandpa", "Dad"]

_ANIMALS = {
    **{word: word + "s" for word in _words("""
        cat dog hen duck goat horse cow pig rabbit squirrel hedgehog owl frog bear beaver
        badger mole otter lamb kitten parrot snail bee toad duckling donkey
        turtle swan robin crow seal whale bat bug tiger lion monkey elephant giraffe panda
        zebra
    """)},
    "mouse": "mice", "goose": "geese", "fox": "foxes", "wolf": "wolves", "calf": "calves",
    "butterfly": "butterflies", "puppy": "puppies", "pony": "ponies",
}  # fmt: skip

CLASSES: dict[str, list[str]] = {
    "person": GIRLS + BOYS,
    "adult": WOMEN + MEN,
    "animal": list(_ANIMALS),
    "animals": list(_ANIMALS.values()),
    "pet": _words("""
        Biscuit Pepper Button Ginger Patch Snowball Whiskers Muffin Pickle Bramble Toffee
        Domino Pebble Noodle Waffles Clover Rusty Mittens Peanut Pumpkin Sooty Tinker Marble
        Bingo
    """),
    "thing": _words("""
        kite drum ball lamp book doll hat scarf basket bucket umbrella whistle trumpet flute
        puppet yo-yo spade mug bell flag lantern rope clock vase pencil ribbon feather purse
        mirror violin helmet blanket cushion balloon notebook necklace bracelet ring key map
        telescope compass mitten apron teapot spoon ladle comb brush paintbrush suitcase
        rucksack wagon sledge boat train rocket robot truck jug wig pail towel pen box top
        postcard envelope diary letter parcel stamp magnet torch hammer jar kettle pillow bowl
        plate candle fan globe guitar harp tambourine mask cape crown shield bonnet cap shawl
        watch locket brooch bead shell acorn
    """),
    "colour": _words("""
        red blue green yellow purple pink brown grey white black silver golden scarlet
        turquoise violet crimson
    """),
    "material": _words("""
        wooden woollen tin paper leather cardboard velvet copper silk straw iron clay
    """),
    "place": _words("""
        garden kitchen barn forest attic cellar library meadow orchard stable park bathroom
        hall schoolyard shed cottage bakery tower greenhouse hut tent cave valley courtyard
        playground bedroom workshop pantry village castle churchyard museum laundry
    """),
    "spot": _words("""
        mat rug table shelf bench bed sofa chair stool wall roof step stone log windowsill
        doorstep gate cupboard desk carpet haystack stump wheelbarrow fence armchair piano
    """),
    "items": _words("""
        apples pears plums cherries nuts eggs buttons buns cakes biscuits carrots onions
        potatoes strawberries peaches tomatoes marbles pebbles shells coins stamps candles
        cards flowers tulips roses sandwiches sweets pancakes chestnuts mushrooms lemons
        radishes turnips muffins pumpkins walnuts tarts dumplings beans stickers crayons beads
        acorns
    """),
    "number": _words("""
        zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
        fifteen sixteen seventeen eighteen nineteen twenty
    """),
    "day": _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "month": _words("""
        January February March April May June July August September October November December
    """),
    "part": _words("king queen dragon prompter witch knight giant wizard fairy robber"),
    "season": _words("spring summer autumn winter"),
    "weather": _words("sunny windy cloudy warm cool misty bright snowy stormy chilly mild breezy"),
    "condition": _words("hungry thirsty tired cold bored ill lonely sad frightened"),
    "remedy": _words("bread water sleep warmth play medicine company music courage"),
    "trouble": _words("""
        hole leak puncture crack knot stain scratch draught squeak itch blister creak
    """),
    "tool": _words("""
        thread tar rubber glue patience bleach varnish wool oil ointment plaster grease
    """),
    "rhyme": _words("house tree sail carrot wheel road"),
    "manner": _words("""
        slowly quickly quietly carefully happily proudly bravely gently eagerly calmly
        cheerfully politely patiently softly merrily
    """),
    "quality": _words("""
        old big little strange beautiful small lovely tiny pretty splendid plain funny dusty
        marvellous
    """),
}  # fmt: skip

NUMBERS = CLASSES["number"]
SEQUENCES = [CLASSES["day"], CLASSES["month"], CLASSES["season"]]

_RHYMES = {
    "mouse": "house", "bear": "chair", "fox": "box", "goat": "boat", "cat": "mat", "bat": "hat",
    "frog": "log", "snail": "pail", "hen": "pen", "bee": "tree", "whale": "sail", "owl": "towel",
    "bug": "jug", "duck": "truck", "pig": "wig", "kitten": "mitten",
    "parrot": "carrot", "seal": "wheel", "toad": "road",
}  # fmt: skip
_REMEDIES = {
    **dict(zip(CLASSES["condition"], CLASSES["remedy"], strict=True)),
    **dict(zip(CLASSES["trouble"], CLASSES["tool"], strict=True)),
}

_PRONOUNS = {
    "they": ("she", "he", "it"),
    "them": ("her", "him", "it"),
    "their": ("her", "his", "its"),
    "self": ("herself", "himself", "itself"),
}
_VERBS = {"was": ("was", "were"), "is": ("is", "are"), "has": ("has", "have")}

CLASS_OF: Mapping[str, str] = {
    **{word.lower(): name for name, words in reversed(CLASSES.items()) for word in words},
    **{word: "pronoun" for form in ("they", "them", "their") for word in _PRONOUNS[form]},
    **dict.fromkeys(_PRONOUNS["self"], "reflexive"),
    **{word: form for form, words in _VERBS.items() for word in words},
    "a": "article",
    "an": "article",
}
WORDS: Mapping[str, str] = {
    word.lower(): word
    for name in ("person", "adult", "pet", "day", "month")
    for word in CLASSES[name]
}


def gender(word: str) -> int:
    """Return 0 for she, 1 for he, 2 for it."""
    if word in GIRLS or word in WOMEN:
        return 0
    return 1 if word in BOYS or word in MEN else 2


def inflect(word: str, form: str, word_class: str) -> str | None:
    """Return a word's pronoun, agreeing form or rhyme; None without one."""
    if form in _PRONOUNS:
        return _PRONOUNS[form][gender(word)]
    if form in _VERBS:
        return _VERBS[form][word_class in {"animals", "items"}]
    return {"rhyme": _RHYMES, "remedy": _REMEDIES}[form].get(word)


def form_classes(form: str) -> set[str]:
    """Return the classes of the words that a form can give."""
    if form in _PRONOUNS:
        return {"reflexive" if form == "self" else "pronoun"}
    if form in _VERBS:
        return {form}
    words = {"rhyme": _RHYMES, "remedy": _REMEDIES}[form].values()
    return {CLASS_OF[word] for word in words}


# Words of a class that suit a relation, if not all do; "cat" is repeated to be more frequent.
SUITABLE: Mapping[str, list[str]] = {
    "animal": [word for word in _ANIMALS if word not in {"whale", "seal", "bug", "bat", "bee"}],
    "animal verse": list(_RHYMES),
    "animal species": _words("dog cat goat horse pony rabbit lamb kitten puppy donkey calf"),
    "animal sitting": _words("""
        cat cat cat cat cat cat cat cat dog hen duck rabbit squirrel hedgehog owl frog kitten puppy
        parrot toad robin crow monkey mouse goose
    """),
    "spot spot": ["mat"] * 7 + CLASSES["spot"],
    "place place": _words("""
        kitchen barn attic cellar library stable bathroom hall shed cottage bakery tower
        greenhouse hut tent workshop pantry bedroom laundry museum
    """),
    "thing made": _words("box crown mask doll puppet bowl boat robot bracelet basket train hat"),
}

_SYLLABLES = (
    _words("zu mo ka ri be lo ta fi nu ve"),
    _words("lim dra zi bo mel ru po gla ni sha"),
    _words("ko ra ba lin do mu fel ti zo wa"),
)


def made_up_names() -> list[str]:
    """Return a thousand invented names."""
    first, second, third = _SYLLABLES
    return [(a + b + c).capitalize() for a in first for b in second for c in third]
