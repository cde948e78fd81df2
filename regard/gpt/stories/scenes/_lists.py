"""Lists that are read out: a name, what belongs to it at most a few words later, and nothing else.

In a scene every word may seem to decide the next, and it takes a model very long to find the one
that does. In a list it stands near the answer; what is learned there serves in every scene.
"""

from regard.gpt.stories.scenes._format import Scene, renumbered, scene


def _list(what: str, entry: str, asked: str) -> Scene:
    """Three entries, which are then read out in any order."""
    entries = ", ".join(renumbered(entry, {"1": number}) for number in "123")
    read = f"<123>\nThe list of {what} said {asked}."
    return scene("\n\n".join([f"There was a list of {what}: {entries}.", *[read] * 4]))


# What is asked for stands behind what it is asked by, or before it.
PRESENTS = (
    _list("presents", "{thing} {person=holder thing}", "{thing} {person0?holder thing}"),
    _list("gifts", "{thing} for {person=holder thing}", "{thing} for {person0?holder thing}"),
    _list(
        "parcels",
        "the {thing} is for {person=holder thing}",
        "the {thing} is for {person0?holder thing}",
    ),
    _list(
        "keepers",
        "the {thing} belongs to {person=holder thing}",
        "the {thing} stays with {person0?holder thing}",
    ),
    _list(
        "porters",
        "{person=holder thing} carries the {thing}",
        "the {thing} is carried by {person0?holder thing}",
    ),
    _list("owners", "{person=holder thing} {thing}", "{thing} {person0?holder thing}"),
    _list(
        "guards",
        "{thing} {person=holder thing}",
        "that the {thing} was left in the hands of {person0?holder thing}",
    ),
    _list(
        "lenders",
        "the {thing} is with {person=holder thing}",
        "whoever wants the {thing} has to ask {person0?holder thing}",
    ),
    _list(
        "winners",
        "{person=holder thing} has the {thing}",
        "the {thing} is with {person0?holder thing}",
    ),
)
PLACES = (
    _list("places", "{thing} {place=place thing}", "{thing} {place0?place thing}"),
    _list("things", "{thing} in the {place=place thing}", "{thing} in the {place0?place thing}"),
    _list(
        "tools",
        "the {thing} belongs in the {place=place thing}",
        "the {thing} belongs in the {place0?place thing}",
    ),
    _list("stores", "{place=place thing} {thing}", "{thing} {place0?place thing}"),
)
COLOURS = (
    _list("colours", "{thing} {colour=colour thing}", "{thing} {colour0?colour thing}"),
    _list("wishes", "{thing} in {colour=colour thing}", "{thing} in {colour0?colour thing}"),
    _list(
        "orders",
        "the {thing} must be {colour=colour thing}",
        "the {thing} must be {colour0?colour thing}",
    ),
    _list("paints", "{colour=colour thing} {thing}", "{thing} {colour0?colour thing}"),
)
WORRIES = (
    _list(
        "worries", "{person} {condition=condition person}", "{person} {condition?condition person}"
    ),
    _list(
        "complaints",
        "{person} is {condition=condition person}",
        "{person} is {condition?condition person}",
    ),
    _list(
        "cures", "{person} is {condition=condition person}", "{person} needs {remedy0?needs person}"
    ),
    _list(
        "troubles",
        "{person} feels very {condition=condition person}",
        "{person} feels very {condition?condition person}",
    ),
    _list(
        "patients", "{condition=condition person} {person}", "{person} {condition?condition person}"
    ),
)
PARTS = (
    _list("parts", "{person=played part} {part=part person}", "{person} {part?part person}"),
    _list(
        "players",
        "{person=played part} as the {part=part person}",
        "{person} as the {part?part person}",
    ),
)
PETS = (
    _list("pets", "{person=owner pet} {pet=pet person}", "{person} {pet0?pet person}"),
    _list("animals", "{person=owner pet} has {pet=pet person}", "{person} has {pet0?pet person}"),
    _list(
        "guests",
        "{person=owner pet} comes with {pet=pet person}",
        "{person} comes with {pet0?pet person}",
    ),
    _list(
        "visitors",
        "{person=owner pet} has a {animal=species pet} called {pet=pet person=named animal}",
        "{person} brings {pet0?pet person}",
    ),
    _list(
        "neighbours",
        "a {animal=species pet} called {pet=pet person=named animal} belongs to {person=owner pet}",
        "{person} brings {pet0?pet person}",
    ),
    _list("names", "{pet=pet person} {person=owner pet}", "{person} {pet0?pet person}"),
    _list(
        "shows",
        "{person=owner pet} with {pet=pet person}",
        "that {person} came back and looked for {pet0?pet person}",
    ),
    _list(
        "friends",
        "{pet=pet person} belongs to {person=owner pet}",
        "{person} comes with {pet0?pet person}",
    ),
)
