"""Lists that are read out: a name, what stands beside it, and nothing else to go by.

In a scene every word may seem to decide the next, and it takes a model very long to find the one
that does. In a list it stands beside the answer; what is learned there serves in every scene.
"""

from regard.gpt.stories.scenes._format import Scene, renumbered, scene


def _list(what: str, entry: str, asked: str) -> Scene:
    """Three entries, which are then read out in any order."""
    entries = ", ".join(renumbered(entry, {"1": number}) for number in "123")
    read = f"<123>\nThe list of {what} said {asked}."
    return scene("\n\n".join([f"There was a list of {what}: {entries}.", *[read] * 4]))


PRESENTS = _list("presents", "{thing} {person=holder thing}", "{thing} {person0?holder thing}")
PLACES = _list("places", "{thing} {place=place thing}", "{thing} {place0?place thing}")
COLOURS = _list("colours", "{thing} {colour=colour thing}", "{thing} {colour0?colour thing}")
WORRIES = _list(
    "worries", "{person} {condition=condition person}", "{person} {condition?condition person}"
)
PARTS = _list("parts", "{person=played part} {part=part person}", "{person} {part?part person}")
PETS = _list("pets", "{person=owner pet} {pet=pet person}", "{person} {pet0?pet person}")
