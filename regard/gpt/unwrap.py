"""Checks of a caller's model: a GPT, maybe wrapped; its mode; weights that can be saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard._modules import require_whole, unwrapped, unwrapped_name
from regard.gpt.model import GPT
from regard.gpt.model_files import why_no_weight
from regard.gpt.tokenizer import Tokenizer

__all__ = ["as_gpt", "evaluating", "require_own_tokenizer", "weights_to_write"]


def as_gpt(model: nn.Module, *, whole: bool = True) -> GPT:
    """Return the GPT inside wrappers of torch.compile, DataParallel or DistributedDataParallel.

    Args:
        model: the model.
        whole: whether its weights are read outside its forward pass, which FSDP does not allow.

    Raises:
        TypeError: if it is not a GPT.
        ValueError: if FSDP shards it, and `whole` is True.
    """
    inner = unwrapped(model)
    if whole:
        require_whole(inner)
    if not isinstance(inner, GPT):
        raise TypeError(
            f"model is a {type(inner).__name__}; expected a GPT of regard.gpt, as it is or wrapped "
            "by torch.compile, DataParallel or DistributedDataParallel"
        )
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Use evaluation mode without gradients inside the block; each module's mode is restored."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before:  # a module before those within it
            if module.training != training:
                module.train(training)


def weights_to_write(model: GPT, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return a model's weights under its own names, checked so that a file of them can be loaded.

    Args:
        model: the model.
        dtype: the precision to write; None is that of the model.

    Raises:
        ValueError: if `load` could not read them: the model is sharded or on the meta device, has
            matrices in int8 or blocks, other weights than its configuration, or weights that are
            not finite or not floating point.
    """
    if model.weights is not None:
        raise ValueError(
            f"the model has weights in {model.weights}, which are made as it is loaded and not "
            f'saved: save the one that is loaded without weights="{model.weights}"'
        )
    require_whole(model)
    weights = {
        unwrapped_name(name): weight.detach().to(dtype=dtype)
        for name, weight in model.state_dict().items()
    }
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in GPT(model.config).state_dict().items()}
    for name in sorted(weights.keys() | expected.keys()):
        if name not in expected:
            raise ValueError(
                f"model has a weight {name}, which a GPT of its configuration does not have: it "
                "could not be loaded; take out what was added, such as adapters"
            )
        if name not in weights or weights[name].shape != expected[name]:
            shape = tuple(weights[name].shape) if name in weights else "missing"
            raise ValueError(
                f"model's {name} is {shape}, and its configuration says {tuple(expected[name])}: "
                "it could not be loaded; make the two agree"
            )
        if weights[name].is_meta:
            raise ValueError(
                f"model's {name} has no values, as it is on the device meta: save the model that "
                "was trained or loaded"
            )
        if (why := why_no_weight(weights[name])) is not None:
            raise ValueError(f"model's {name} {why}: it could not be loaded")
    return weights


def require_own_tokenizer(model: GPT, tokenizer: Tokenizer) -> None:
    """Raise ValueError where a tokenizer's vocabulary is not the model's."""
    if tokenizer.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"tokenizer has {tokenizer.vocab_size} tokens and the model's vocabulary is "
            f"{model.config.vocab_size}; save a model with the tokenizer it was trained with"
        )
