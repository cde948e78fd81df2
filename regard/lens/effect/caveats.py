"""Warnings about effects that are random or incomplete: random numbers, and hybrid models."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from regard._modules import unwrapped
from regard.lens.effect.blocks import equal, tensors_in

__all__ = ["Draws", "hybrid_note", "same_draws", "warn_of_hybrid"]

_NAMED = 3  # modules in a warning; the others are counted
# What configurations of transformers call such layers; those named hybrid have attention as well.
_BESIDE = {"linear_attention", "mamba", "recurrent", "conv", "hybrid", "hybrid_sliding"}


class Draws:
    """Detects whether a model draws random numbers from now on.

    Two runs then differ by chance too, and so do effects, which are differences of runs. Only draws
    from torch's default generators are detected, not from others, Python's or NumPy's.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = unwrapped(model)
        self._before = _states(self._model)

    def warn(self, run: Callable[[], object]) -> None:
        """Warn if the model drew random numbers that its results depend on.

        Args:
            run: runs the model again and returns its results. If no module has dropout, the results
                of two runs are compared: some models draw random numbers without using them.

        Warns:
            RuntimeWarning: with the names of the modules that have dropout.
        """
        after = _states(self._model)
        if all(torch.equal(one, other) for one, other in zip(self._before, after, strict=True)):
            return
        dropping = _dropping(self._model)
        if dropping:
            more = f" and {len(dropping) - _NAMED} more" if len(dropping) > _NAMED else ""
            why = f"dropout in training mode: {', '.join(dropping[:_NAMED])}{more}"
        else:
            results = []
            for seed in (0, 1):
                with same_draws(self._model, seed):
                    results.append([*tensors_in(run())])
            if all(equal(one, other) for one, other in zip(*results, strict=False)):
                return
            why = "its results differ from run to run"
        message = (
            f"the model draws random numbers while it runs ({why}), so that effects, which are "
            "differences of two runs, are partly chance; call model.eval() first, and switch off "
            "what still draws some"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=_callers())


@contextmanager
def same_draws(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Seed the generators inside the block, and restore their states after it."""
    with torch.random.fork_rng(devices=_gpus(model)):
        torch.manual_seed(seed)
        yield


def _states(model: nn.Module) -> list[Tensor]:
    """Return the states of the generators that a model may draw from."""
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, _gpus(model))]


def _gpus(model: nn.Module) -> list[int]:
    return sorted({tensor.get_device() for tensor in model.parameters() if tensor.is_cuda})


def _dropping(model: nn.Module) -> list[str]:
    """Return the names of the modules with dropout in training mode."""
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if module.training and _has_dropout(module)
    ]


def _has_dropout(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    rates = [value for name, value in vars(module).items() if "drop" in name]
    return any(isinstance(rate, (int, float)) and rate > 0 for rate in rates)


def _callers() -> int:
    """Return the stack level of the code outside this package, for `warnings.warn`."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and _is_between(frame.f_globals.get("__name__", "")):
        frame, count = frame.f_back, count + 1
    return count


def _is_between(module: str) -> bool:
    """Whether a frame is of this package, or of a ``with`` block that it enters."""
    return module.startswith("regard.") or module == "contextlib"


def hybrid_note(model: nn.Module) -> str | None:
    """Return a warning that a hybrid model of transformers passes tokens on without attention.

    None for other models, by their configuration.
    """
    text = _text_config(getattr(unwrapped(model), "config", None))
    layers = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    if not isinstance(layers, (list, tuple)):
        return None
    others = [name for name in layers if name in _BESIDE]
    if not others:
        return None
    kinds = ", ".join(sorted(set(others)))
    return (
        f"tokens reach each other without attention in {len(others)} of the model's {len(layers)} "
        f"layers ({kinds}): what is hidden from attention can still be read there"
    )


def _text_config(config: Any) -> Any:
    try:
        return config.get_text_config() if hasattr(config, "get_text_config") else config
    except ValueError:  # it has several
        return None


def warn_of_hybrid(model: nn.Module) -> None:
    """Warn the user that tokens hidden from attention are not hidden completely."""
    note = hybrid_note(model)
    if note is not None:
        warnings.warn(note, RuntimeWarning, stacklevel=3)
