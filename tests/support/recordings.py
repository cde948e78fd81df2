"""Recordings of layers that attend to random numbers.

Axes: B batch, H heads, L positions, D head dimension.
"""

import contextlib
import inspect

import torch
import torch.nn.functional as F
from torch import nn

import regard

B, H, L, D = 2, 3, 7, 5
WORDS = ["a", "b", "c", "d", "e", "f", "g"]
# `regard.record` without the tests' check of its annotations, which comes before its own.
unchecked = contextlib.contextmanager(inspect.unwrap(regard.record))


class Attend(nn.Module):
    def forward(self, query, key, **options):
        return F.scaled_dot_product_attention(query, key, key, **options)


class Model(nn.Module):
    """Attends anew in each layer; called with ids, or with what each layer is to be handed."""

    def __init__(self, names=("first", "second")):
        super().__init__()
        for name in names:
            self.add_module(name, Attend())
        self.names = names

    def forward(self, input_ids=None, *, inputs=None, **options):
        for place, name in enumerate(self.names):
            if inputs is None:
                query, key = torch.randn(2, *input_ids.shape[:-1], H, input_ids.shape[-1], D)
            else:
                query, key = inputs[place]
            getattr(self, name)(query, key, **options)


def recorded(inputs, *, causal=True, **options):
    names = [f"layer{n}" for n in range(len(inputs))]
    model = Model(names)
    with regard.record(model, **options) as recording:
        model(inputs=inputs, is_causal=causal)
    return recording


def two_layers(**options):
    inputs = torch.randn(2, 2, B, H, L, D)
    return recorded(inputs, **options)


def mixed():
    """Self-attention, cross-attention and an encoder, in the order of their calls."""
    model = nn.Module()
    model.encoder = Model(("a", "b"))
    model.decoder = Model(("self_attn", "cross_attn"))
    with regard.record(model) as recording:
        model.forward = lambda: (
            model.encoder(inputs=torch.randn(2, 2, B, H, 5, D)),
            model.decoder(
                inputs=[
                    torch.randn(2, B, H, L, D),
                    (torch.randn(B, H, L, D), torch.randn(B, H, 5, D)),
                ]
            ),
        )
        model()
    return recording
