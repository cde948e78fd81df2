"""What attention means: roles of heads, weights of spans, what an answer needs, watching training.

Everything here is a function of a `Recording`, or of a model that is run with interventions; the
core does not depend on it.
"""

from regard.lens import circuits
from regard.lens._fidelity import Fidelity, HeadFidelity, fidelity
from regard.lens._rollout import rollout
from regard.lens.effect import Check, Contexts, Effect, Effects, contexts, effects, patch
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
    Passage,
    SpanValues,
    SpanWeights,
    link_weights,
    passage_weights,
    split_passages,
    token_offsets,
)
from regard.lens.targets import Answer, Logit, LogProbability

__all__ = [
    "Alarm",
    "AlarmWarning",
    "Alert",
    "Answer",
    "Check",
    "Contexts",
    "Effect",
    "Effects",
    "Fidelity",
    "HeadFidelity",
    "HeadScores",
    "Heads",
    "JSONLinesWriter",
    "Link",
    "LogProbability",
    "Logit",
    "Monitor",
    "Passage",
    "QKClip",
    "SpanValues",
    "SpanWeights",
    "Writer",
    "WriterWarning",
    "circuits",
    "contexts",
    "effects",
    "fidelity",
    "heads",
    "link_weights",
    "passage_weights",
    "patch",
    "rollout",
    "split_passages",
    "token_offsets",
]
