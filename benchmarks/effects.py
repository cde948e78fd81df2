"""What effects cost: all heads, and all tokens, beside one forward and beside hooks by hand.

The models are the one that comes with the package and SmolLM2, where its weights are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from benchmarks.arguments import take_none
from benchmarks.report import Report, milliseconds
from regard.cli.timing import interleaved
from regard.errors import Error
from regard.gpt import load

LENGTH = 512
FORWARDS = 12  # that the effects of all 16 heads may take
REAL_LENGTHS = 14, 128
ESTIMATED, MEASURED = 3, 28
"""Forwards that the estimate of all heads of a real model may take, and at the first of
REAL_LENGTHS what is measured of them."""
NEAR = 1e-3  # in log-probability: how far two ways to the same effects may lie apart


def effects(report: Report) -> None:
    """Print the tables."""
    _of_the_shipped_model(report)
    try:
        model = regard.models.open("smollm2")
    except (Error, ModuleNotFoundError) as error:
        print(f"\neffects of a real model: {str(error).splitlines()[0]}")
        return
    for length in REAL_LENGTHS:
        _of_a_real_model(report, model.module, length)


def _of_the_shipped_model(report: Report) -> None:
    model, _ = load()
    ids = torch.randint(model.config.vocab_size, (LENGTH,))
    measure = partial(regard.lens.effects, model, ids, regard.lens.LogProbability(0))
    heads = model.config.layers * model.config.heads
    tasks: dict[str, Callable[[], object]] = {
        "one forward": partial(model, ids),
        f"{heads} heads ablated": measure,
        f"{heads} heads, by gradient": partial(measure, method="gradient"),
        "64 blocks of keys hidden": partial(measure, over="keys"),
    }
    report.table(
        f"effects: the shipped model, {LENGTH} tokens",
        *(("what", 26), ("ms", 9), ("forwards", 14)),
    )
    with torch.no_grad():
        seconds = interleaved(tasks).seconds
    for name, taken in seconds.items():
        limit = FORWARDS if tasks[name] is measure else None
        ratio = report.at_most(name, taken / seconds["one forward"], limit)
        report.row(name, milliseconds(taken), ratio)


def _of_a_real_model(report: Report, module: Any, length: int) -> None:
    ids = torch.randint(module.config.vocab_size, (length,))
    target = regard.lens.LogProbability(0)
    tasks: dict[str, Callable[[], object]] = {
        "one forward": partial(module, ids[None]),
        "with the last logits alone": partial(_number, module, ids),
        "all heads, by gradient": partial(
            regard.lens.effects, module, ids, target, method="gradient"
        ),
        "the same by hooks": partial(gradient_by_hand, module, ids),
    }
    targets = {"all heads, by gradient": ESTIMATED}
    if length == min(REAL_LENGTHS):  # of more tokens, it takes minutes
        ablated = partial(regard.lens.effects, module, ids, target)
        by_hand = partial(ablated_by_hand, module, ids)
        off = (ablated().values - by_hand()).abs().max().item()
        if off > NEAR:
            raise RuntimeError(f"effects by hand are off by {off:.1e}")
        tasks |= {"all heads ablated": ablated, "the same by hooks, a layer a run": by_hand}
        targets |= {"all heads ablated": MEASURED}
    report.table(
        f"effects: SmolLM2, 270 heads, {length} tokens; processor time",
        *(("what", 34), ("ms", 9), ("forwards", 16), ("half of the rounds", 18)),
    )
    with torch.no_grad():
        measured = interleaved(tasks, clock=time.process_time)
    for name, seconds in measured.seconds.items():
        ratio = measured.ratio(name, "one forward")
        cell = report.at_most(f"{length} tokens, {name}", ratio.median, targets.get(name))
        report.row(name, milliseconds(seconds), cell, f"{ratio.low:.2f} to {ratio.high:.2f}")


def _number(module: Any, ids: Tensor) -> Tensor:
    """Log-probability of token 0 after the text, computing no other logits."""
    logits = module(ids[None] if ids.ndim == 1 else ids, logits_to_keep=1).logits
    return logits[:, -1].log_softmax(-1)[:, 0]


def ablated_by_hand(module: Any, ids: Tensor) -> Tensor:
    """Run a Llama once for each layer, on a copy of the text for each head, without that head.

    Returns:
        ``(layers, H)``.
    """
    heads, unchanged = module.config.num_attention_heads, _number(module, ids)
    rows = []
    for layer in module.model.layers:

        def zero(_: Any, given: tuple[Tensor]) -> tuple[Tensor]:
            context = given[0].unflatten(-1, (heads, -1)).clone()  # (H, T, H, D)
            context[range(heads), :, range(heads)] = 0
            return (context.flatten(-2),)

        hook = layer.self_attn.o_proj.register_forward_pre_hook(zero)
        try:
            rows.append(_number(module, ids.repeat(heads, 1)) - unchanged)
        finally:
            hook.remove()
    return torch.stack(rows).double()


def gradient_by_hand(module: Any, ids: Tensor) -> Tensor:
    """Attribution patching of the heads of a Llama: −context · gradient.

    Returns:
        ``(layers, H)``.
    """
    contexts: list[Tensor] = []
    hooks = [
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: contexts.append(given[0]))
        for layer in module.model.layers
    ]
    try:
        with torch.enable_grad():
            gradients = torch.autograd.grad(_number(module, ids), contexts)
    finally:
        for hook in hooks:
            hook.remove()
    products = [-(c.detach() * g)[0] for c, g in zip(contexts, gradients, strict=True)]
    heads = module.config.num_attention_heads
    return torch.stack([each.unflatten(-1, (heads, -1)).sum(dim=(0, 2)) for each in products])


if __name__ == "__main__":
    take_none("benchmarks.effects", "Measure what effects cost beside a forward pass.")
    report = Report()
    effects(report)
    report.summary()
