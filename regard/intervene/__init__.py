"""Interventions: change what a model attends to, and see what becomes of it."""

from regard.intervene._effect_table import Check, Effect, Effects
from regard.intervene._effect_targets import Logit, LogProbability
from regard.intervene._effects import effects
from regard.intervene._errors import InterventionError
from regard.intervene._intervene import intervene
from regard.intervene._intervention import Intervention
from regard.intervene._passage_effects import PassageEffects, passage_effects

__all__ = [
    "Check",
    "Effect",
    "Effects",
    "Intervention",
    "InterventionError",
    "LogProbability",
    "Logit",
    "PassageEffects",
    "effects",
    "intervene",
    "passage_effects",
]
