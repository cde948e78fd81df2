"""What attention means: roles of heads, weights of spans, what an answer needs, watching training.

Everything here is a function of a `Recording`, or of a model that is run with interventions; the
core does not depend on it.
"""

from typing import TYPE_CHECKING

from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard.lens import circuits
    from regard.lens._fidelity import Fidelity, HeadFidelity, fidelity
    from regard.lens._kept import directions, norms, values
    from regard.lens._rollout import rollout
    from regard.lens.effect.contexts import Contexts, contexts
    from regard.lens.effect.effects import effects
    from regard.lens.effect.patching import patch
    from regard.lens.effect.table import Check, Effect, Effects
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
    from regard.lens.trace import Deletion, Trace, deletion, trace
    from regard.lens.view_names import View
    from regard.lens.views import Views, views

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
    "Deletion",
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
    "Trace",
    "View",
    "Views",
    "Writer",
    "WriterWarning",
    "atlas",
    "circuits",
    "contexts",
    "deletion",
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
    "trace",
    "values",
    "views",
]

_HOMES = {
    "Fidelity": "_fidelity",
    "HeadFidelity": "_fidelity",
    "fidelity": "_fidelity",
    "directions": "_kept",
    "norms": "_kept",
    "values": "_kept",
    "rollout": "_rollout",
    "Check": "effect",
    "Contexts": "effect",
    "Effect": "effect",
    "Effects": "effect",
    "contexts": "effect",
    "effects": "effect",
    "patch": "effect",
    "Atlas": "head_atlas",
    "AtlasDifference": "head_atlas",
    "Change": "head_atlas",
    "Corpus": "head_atlas",
    "HeadVis": "head_atlas",
    "atlas": "head_atlas",
    "export_headvis": "head_atlas",
    "join_atlas": "head_atlas",
    "load_headvis": "head_atlas",
    "Alarm": "monitor",
    "AlarmWarning": "monitor",
    "Alert": "monitor",
    "JSONLinesWriter": "monitor",
    "Monitor": "monitor",
    "QKClip": "monitor",
    "Writer": "monitor",
    "WriterWarning": "monitor",
    "Heads": "naming",
    "HeadScores": "naming",
    "heads": "naming",
    "probe": "naming",
    "Sinks": "sink_keys",
    "sinks": "sink_keys",
    "Link": "spans",
    "Passage": "spans",
    "SpanValues": "spans",
    "SpanWeights": "spans",
    "link_weights": "spans",
    "passage_weights": "spans",
    "split_passages": "spans",
    "token_offsets": "spans",
    "Answer": "targets",
    "Logit": "targets",
    "LogProbability": "targets",
    "LeadingHead": "toward",
    "LogitParts": "toward",
    "Part": "toward",
    "leading_head": "toward",
    "toward": "toward",
    "Deletion": "trace",
    "Trace": "trace",
    "deletion": "trace",
    "trace": "trace",
    "View": "view_names",
    "Views": "views",
    "views": "views",
}

make_lazy(__name__, _HOMES, {"circuits"})
