"""Attention sinks in the shape of GPT-2, planted: queries and keys are made up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import regard
from regard_site.gallery.exhibit import Exhibit
from regard_site.gallery.progress import Progress

__all__ = ["sinks"]

_LAYERS, _HEADS, _DIM, _TOKENS = 12, 12, 64, 96


def sinks(progress: Progress) -> Exhibit:
    """A report of 144 heads that more and more look at the first token."""
    torch.manual_seed(0)
    names = [f" {at}" for at in range(_TOKENS)]
    with regard.record(tokens=names) as recording:
        for layer in range(_LAYERS):
            query, key, value = _make_sink(layer)
            F.scaled_dot_product_attention(query, key, value, is_causal=True)
    regard.report(
        recording, progress.folder / "report.html", title="sinks, planted", start="l=10&h=10"
    )
    return Exhibit(
        name="sinks",
        title="Sinks: weight that has nowhere else to go",
        text=(
            f"The shape of the small GPT-2: {_LAYERS} layers of {_HEADS} heads, {_TOKENS} "
            "tokens. Its queries and keys are made up, as no weights of GPT-2 come with the "
            "package: random, with a direction added that every query has and the first key "
            "alone, the more the deeper the layer and the further right the head. So the first "
            "column takes what no other key asks for (Xiao et al. 2023, arXiv:2309.17453). "
            "`regard explore --model openai-community/gpt2` shows the same of GPT-2 itself."
        ),
        frame="gallery/sinks/report.html",
    )


def _make_sink(layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (1, H, T, D) of a layer; heads differ in their sink's strength."""
    query, key, value = torch.randn(3, 1, _HEADS, _TOKENS, _DIM)
    direction = nn.functional.normalize(torch.randn(1, _HEADS, 1, _DIM), dim=-1)
    strength = layer / (_LAYERS - 1) * torch.linspace(0.2, 1, _HEADS)[:, None, None]
    query = query + 8 * direction
    key[:, :, :1] += 9 * strength * direction
    return query, key, value
