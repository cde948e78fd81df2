"""What can happen in a story, as data: a scene is a row of beats, a beat a choice of passages."""

from regard.gpt.stories.scenes import _animals, _games, _lists, _numbers, _people, _things
from regard.gpt.stories.scenes._format import Scene, renumbered, scene
from regard.gpt.stories.scenes._frame import (
    ENDINGS,
    INTRODUCTIONS,
    OPENINGS,
    QUESTIONS,
    TRANSITIONS,
)
from regard.gpt.stories.scenes._lines import lines
from regard.gpt.stories.scenes._sights import SIGHTS

# Of the scenes of a group a story has one at most: two would speak of the same days or feelings. A
# group that stands here several times is told more often: a word of it depends on which is meant.
GROUPS: tuple[tuple[Scene, ...], ...] = (
    *((*(_things.PRESENTS,) * 7, *_lists.PRESENTS),) * 5,
    *((*(_things.COLOURS,) * 3, *_lists.COLOURS), (*(_things.PLACES,) * 3, *_lists.PLACES)) * 4,
    *((*(_animals.PETS,) * 6, *_lists.PETS),) * 4,
    *((*(_people.CONDITIONS, _games.HUT_IN_THE_STORM) * 2, *_lists.WORRIES),) * 3,
    *((_numbers.VERSE, _games.RHYMING_WORDS), (_people.CALLING, _games.AT_THE_WINDOW)) * 3,
    (_things.LOST_AND_FOUND,),
    (_things.WALKING_WITH, _games.HIDING),
    (_things.MATERIALS,),
    (_people.RAIN,),
    *((_people.MIRROR,), (_people.GLANCES,)) * 2,
    (_people.GLANCES,),
    (_people.FRIENDS_IN_BRACKETS,),
    (_people.RACE,),
    (_people.CLIMBING,),
    (_animals.CAT_ON_MAT,),
    (_animals.PARROT,),
    *((_animals.CHASE,), (_animals.WHO_SAID_IT, _animals.LINES, _animals.LINES)) * 2,
    (_animals.WHO_SAID_IT, _animals.LINES),
    (_animals.SPELL,),
    (_animals.CREATURE,),
    (_numbers.EATING,),
    (_numbers.COUNTING,),
    (_numbers.WEEK, _games.CIRCUS),
    (_numbers.YEAR,),
    (_games.THEATRE, _games.THEATRE, *_lists.PARTS),
    (_games.FANCY_DRESS,),
    (_games.CUPBOARD,),
    (_games.REPAIRS,),
)

__all__ = [
    "ENDINGS",
    "GROUPS",
    "INTRODUCTIONS",
    "OPENINGS",
    "QUESTIONS",
    "SIGHTS",
    "TRANSITIONS",
    "Scene",
    "lines",
    "renumbered",
    "scene",
]
