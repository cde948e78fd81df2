"""FlashTrace, written out with every matrix in full: Pan et al. 2026, arXiv:2602.01914.

It is what `regard.lens.trace` is compared with, in tests and by `removal_curves.py`.

Rewritten after https://github.com/wbopan/flashtrace, `flashtrace/core.py`: the importance of a
span's tokens by information flow routes (Ferrando and Voita 2024, arXiv:2403.00824), and its hops.

Axes: N layers, H heads, L tokens, R rows, E model dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Span", "hops_of", "layers_of", "proximity", "span_of"]


class Span(Protocol):
    """Gives the importance of each token for a span of rows, ``(L,)``."""

    def __call__(self, rows: Sequence[int], shares: Tensor | None = None) -> Tensor:
        """Explain rows, summed by their shares."""


@torch.no_grad()
def layers_of(module: Any, ids: Tensor) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Return of each layer of a Llama the stream before and behind attention, weights and v W."""
    config, kept = module.config, dict[str, Any]()

    def watched(name: str, part: torch.nn.Module) -> Any:
        def keep(_: torch.nn.Module, args: Any, output: Any) -> None:
            kept[name] = args, output

        return part.register_forward_hook(keep)

    hooks = [watched(*one) for one in module.named_modules()]
    kind = config._attn_implementation  # noqa: SLF001 - there is no public way to ask
    module.set_attn_implementation("eager")
    weights = module(input_ids=ids[None], use_cache=False, output_attentions=True).attentions
    module.set_attn_implementation(kind)
    for hook in hooks:
        hook.remove()
    heads = config.num_attention_heads
    found = []
    for number, layer in enumerate(module.model.layers):
        name = f"model.layers.{number}"
        width = layer.self_attn.o_proj.weight.shape[1] // heads
        value = kept[f"{name}.self_attn.v_proj"][1][0].unflatten(-1, (-1, width))  # (L, G, Dv)
        value = value.repeat_interleave(heads // value.shape[1], 1).double()
        maps = layer.self_attn.o_proj.weight.unflatten(1, (heads, width)).double()  # (E, H, Dv)
        before = kept[f"{name}.input_layernorm"][0][0][0].double()
        middle = kept[f"{name}.post_attention_layernorm"][0][0][0].double()
        written = torch.einsum("lhd,ehd->hle", value, maps)
        found.append((before, middle, weights[number][0].double(), written))
    return found


def proximity(part: Tensor, whole: Tensor) -> Tensor:
    """Return how far a part takes one toward the whole, by the sum of magnitudes: 0 or more."""
    return (whole.abs().sum(-1) - (part - whole).abs().sum(-1)).clamp_min(0)


def span_of(layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Span:
    """Return the importance of each token for a span of rows, summed over layers, ``(L,)``.

    The rows are first summed, by their shares if there are any, and then explained as one.
    """

    def span(rows: Sequence[int], shares: Tensor | None = None) -> Tensor:
        given = torch.ones(len(rows)).double() if shares is None else shares / shares.sum()
        total = torch.zeros(len(layers[0][0])).double()
        for before, middle, weights, written in layers:
            whole = given @ middle[list(rows)]
            mixed = torch.einsum("r,hrl->hl", given, weights[:, list(rows)])
            near = proximity(mixed[..., None] * written, whole).sum(0)
            total = total + near / (near.sum() + proximity(given @ before[list(rows)], whole))
        return total

    return span


def hops_of(
    span: Span, answer: Sequence[int], between: Sequence[int], document: Sequence[int], hops: int
) -> Tensor:
    """Return the importance of a document's tokens after each hop, ``(hops + 1, L)``.

    Args:
        span: as `span_of` returns it, of rows and their shares.
        answer: the rows to explain.
        between: the rows that propagate what falls on them.
        document: the tokens that are looked at.
        hops: their number.
    """
    base = span(answer)
    mask = torch.zeros_like(base)
    mask[list(document)] = 1
    shares = base[list(between)]
    ratio, seen = shares.sum() / base.sum(), [base * mask]
    for _ in range(hops):
        total = span(between, shares)
        seen.append(seen[-1] + ratio * total * mask)
        shares = total[list(between)]
        ratio = ratio * shares.sum() / total.sum()
    return torch.stack(seen)
