"""What attention means: roles of heads, weights of spans, what an answer needs, watching training.

Everything here is a function of a `Recording`, or of a model that is run with changes; the core
knows none of it.
"""

from regard.lens import circuits
from regard.lens._fidelity import Fidelity, HeadFidelity, fidelity
from regard.lens._rollout import rollout
from regard.lens.effect import (
    Check,
    Effect,
    Effects,
    Logit,
    LogProbability,
    PassageEffects,
    effects,
    passage_effects,
)
from regard.lens.monitor import (
    Alarm,
    AlarmWarning,
    Alert,
    JSONLinesWriter,
    Monitor,
    QKClip,
    Writer,
    WriterWarning,
)
from regard.lens.naming import Heads, HeadScores, heads
from regard.lens.spans import (
    Link,
    LinkValues,
    LinkWeights,
    Passage,
    PassageWeights,
    against,
    passages,
    split_passages,
    token_offsets,
)

__all__ = [
    "Alarm",
    "AlarmWarning",
    "Alert",
    "Check",
    "Effect",
    "Effects",
    "Fidelity",
    "HeadFidelity",
    "HeadScores",
    "Heads",
    "JSONLinesWriter",
    "Link",
    "LinkValues",
    "LinkWeights",
    "LogProbability",
    "Logit",
    "Monitor",
    "Passage",
    "PassageEffects",
    "PassageWeights",
    "QKClip",
    "Writer",
    "WriterWarning",
    "against",
    "circuits",
    "effects",
    "fidelity",
    "heads",
    "passage_effects",
    "passages",
    "rollout",
    "split_passages",
    "token_offsets",
]
