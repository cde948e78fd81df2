"""Causal self-attention that you can see inside.

The attention weights of a model are a lazy matrix: computed at the speed of a fused kernel, never
stored, and exact wherever you look.
"""

from contextlib import nullcontext
from typing import Any

from regard import _display
from regard._interrupt import is_command, quiet_interrupts

with quiet_interrupts() if is_command() else nullcontext():  # torch takes seconds to import
    from regard.attention import attention, attention_with_pattern
    from regard.errors import Error
    from regard.intervene import (
        Effects,
        Intervention,
        InterventionError,
        Logit,
        LogProbability,
        PassageEffects,
        effects,
        intervene,
        passage_effects,
    )
    from regard.mask import Mask, causal, dense, documents, hide, intervals, padding, prefix, window
    from regard.monitor import Alarm, Monitor
    from regard.pattern import Pattern
    from regard.pattern.readouts import (
        Blocks,
        Distance,
        Entropy,
        Image,
        Lag,
        Mass,
        Max,
        MaxScore,
        Offsets,
        Received,
        Spans,
        TopK,
    )
    from regard.record import (
        Fidelity,
        Layer,
        LinkWeights,
        Passage,
        PassageWeights,
        Recording,
        Run,
        fidelity,
        load,
        record,
        split_passages,
        use_in_transformers,
    )
    from regard.sdpa import scaled_dot_product_attention
    from regard.steps import Step, Steps, explain

__all__ = [
    "Alarm",
    "Blocks",
    "Distance",
    "Effects",
    "Entropy",
    "Error",
    "Fidelity",
    "Image",
    "Intervention",
    "InterventionError",
    "Lag",
    "Layer",
    "LinkWeights",
    "LogProbability",
    "Logit",
    "Mask",
    "Mass",
    "Max",
    "MaxScore",
    "Monitor",
    "Offsets",
    "Passage",
    "PassageEffects",
    "PassageWeights",
    "Pattern",
    "Received",
    "Recording",
    "Run",
    "Spans",
    "Step",
    "Steps",
    "TopK",
    "attention",
    "attention_with_pattern",
    "causal",
    "dense",
    "documents",
    "effects",
    "explain",
    "fidelity",
    "hide",
    "intervals",
    "intervene",
    "load",
    "padding",
    "passage_effects",
    "prefix",
    "record",
    "scaled_dot_product_attention",
    "split_passages",
    "use_in_transformers",
    "window",
]


def _renderer(name: str) -> Any:
    """Import what shows a thing when it is shown: that needs more than torch."""
    from regard import view

    return view.renderer(name)


_display.find_with(_renderer)


def __getattr__(name: str) -> Any:
    """Bring `explore`, `report` and `train` on first use: they need more than torch."""
    if name in {"explore", "report"}:
        from regard import explorer

        return getattr(explorer, name)
    if name == "train":
        from regard.gpt import train

        return train
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
