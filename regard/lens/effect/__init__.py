"""What an answer of a model needs, measured by intervention: heads, keys or passages."""

from regard.lens.effect.effects import effects
from regard.lens.effect.table import Check, Effect, Effects

__all__ = ["Check", "Effect", "Effects", "effects"]
