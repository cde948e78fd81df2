"""One-line captions for the steps of an attention call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regard.steps

__all__ = ["caption"]


def caption(name: str, steps: regard.steps.Steps) -> str:
    """Describe the step with the given name."""
    return _CAPTIONS[name](steps)


def _scaled(steps: regard.steps.Steps) -> str:
    return f"scores · {steps.scale:.4g}, the scale"


def _softcapped(steps: regard.steps.Steps) -> str:
    return f"cap · tanh(scaled / cap), cap = {steps.softcap:.4g}: none beyond ±cap"


def _biased(steps: regard.steps.Steps) -> str:
    before = "scaled" if steps.softcapped is None else "softcapped"
    return f"{before} + a bias for each pair of query and key"


def _masked(steps: regard.steps.Steps) -> str:
    before = {"scaled": steps.scaled, "softcapped": steps.softcapped, "biased": steps.biased}
    last = [name for name, tensor in before.items() if tensor is not None][-1]
    return f"{last}, but −∞ where a query may not see a key"


def _weights(steps: regard.steps.Steps) -> str:
    text = "softmax of each row: shares that sum to 1"
    if steps.sink is not None:
        text = "softmax of each row with its sink: shares that sum to 1 with the sink's"
    return f"{text}; 0 in a row that sees no key" if _has_fully_masked_row(steps) else text


def _entries(steps: regard.steps.Steps) -> str:
    return "weights · factor" if steps.factor is not None else "weights / (1 − weights): their odds"


def _dropped(steps: regard.steps.Steps) -> str:
    if steps.dropout == 1:
        return "every weight zeroed"
    divisor = f"{1 - steps.dropout:.4g}"
    return f"each weight zeroed with probability {steps.dropout:.4g}, else divided by {divisor}"


def _context(steps: regard.steps.Steps) -> str:
    factor = "weights" if steps.dropped is None else "dropped"
    mean = factor == "weights" and steps.sink is None and not _has_fully_masked_row(steps)
    return f"{factor} @ value: each row a weighted {'mean' if mean else 'sum'} of the values"


def _logsumexp(steps: regard.steps.Steps) -> str:
    text = "log of the softmax's denominator: with it, any weight is exp(masked − logsumexp)"
    return f"{text}; −∞ in a row that sees no key" if _has_fully_masked_row(steps) else text


def _has_fully_masked_row(steps: regard.steps.Steps) -> bool:
    """Return True if some row is fully masked; False on the meta device, which has no values."""
    masked = steps.masked
    return not masked.is_meta and bool(masked.isneginf().all(dim=-1).any())


_CAPTIONS: dict[str, Callable[[regard.steps.Steps], str]] = {
    "query": lambda _: "what each position looks for",
    "key": lambda _: "what each position can be found by",
    "value": lambda _: "what each position hands over when it is found",
    "scores": lambda _: "query · key: how well each key answers each query",
    "scaled": _scaled,
    "softcapped": _softcapped,
    "biased": _biased,
    "masked": _masked,
    "weights": _weights,
    "factor": lambda _: "what each weight is multiplied by",
    "entries": _entries,
    "dropped": _dropped,
    "context": _context,
    "logsumexp": _logsumexp,
}
