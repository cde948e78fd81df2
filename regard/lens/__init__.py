"""What attention means: roles of heads, weights of spans, what an answer needs, watching training.

Everything here is a function of a `Recording`, or of a model that is run with interventions; the
core does not depend on it.
"""

from regard.lens import circuits
from regard.lens._fidelity import Fidelity, HeadFidelity, fidelity
from regard.lens._kept import directions, norms, values
from regard.lens._rollout import rollout
from regard.lens.effect import Check, Contexts, Effect, Effects, contexts, effects, patch
from regard.lens.head_atlas import (
    Atlas,
    AtlasDifference,
    Change,
    Corpus,
    HeadVis,
    atlas,
    export_headvis,
    join_atlas,
    load_headvis,
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
from regard.lens.naming import Heads, HeadScores, heads, probe
from regard.lens.sink_keys import Sinks, sinks
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
from regard.lens.toward import LeadingHead, LogitParts, Part, leading_head, toward
from regard.lens.views import View, Views, views

__all__ = [
    "Alarm",
    "AlarmWarning",
    "Alert",
    "Answer",
    "Atlas",
    "AtlasDifference",
    "Change",
    "Check",
    "Contexts",
    "Corpus",
    "Effect",
    "Effects",
    "Fidelity",
    "HeadFidelity",
    "HeadScores",
    "HeadVis",
    "Heads",
    "JSONLinesWriter",
    "LeadingHead",
    "Link",
    "LogProbability",
    "Logit",
    "LogitParts",
    "Monitor",
    "Part",
    "Passage",
    "QKClip",
    "Sinks",
    "SpanValues",
    "SpanWeights",
    "View",
    "Views",
    "Writer",
    "WriterWarning",
    "atlas",
    "circuits",
    "contexts",
    "directions",
    "effects",
    "export_headvis",
    "fidelity",
    "heads",
    "join_atlas",
    "leading_head",
    "link_weights",
    "load_headvis",
    "norms",
    "passage_weights",
    "patch",
    "probe",
    "rollout",
    "sinks",
    "split_passages",
    "token_offsets",
    "toward",
    "values",
    "views",
]
