"""What an answer of a model needs, measured by changing it: heads, keys or passages."""

from regard.lens.effect._effects import effects
from regard.lens.effect._passage_effects import PassageEffects, passage_effects
from regard.lens.effect._table import Check, Effect, Effects
from regard.lens.effect._targets import Logit, LogProbability

__all__ = [
    "Check",
    "Effect",
    "Effects",
    "LogProbability",
    "Logit",
    "PassageEffects",
    "effects",
    "passage_effects",
]
