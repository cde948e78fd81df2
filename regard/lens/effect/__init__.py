"""What an answer of a model needs, measured by intervention: heads, keys, passages or positions."""

from regard.lens.effect.contexts import Contexts, contexts
from regard.lens.effect.effects import effects
from regard.lens.effect.patching import patch
from regard.lens.effect.table import Check, Effect, Effects

__all__ = ["Check", "Contexts", "Effect", "Effects", "contexts", "effects", "patch"]
