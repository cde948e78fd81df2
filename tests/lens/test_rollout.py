"""Attention rollout is the product of the layers' weights."""

import inspect
import math

import pytest
import torch
from support.recordings import B, D, H, L, recorded, two_layers

import regard


def product(patterns, residual):
    """Abnar and Zuidema's recursion with matrices."""
    result = None
    for pattern in patterns:
        weights = pattern.dense().double().mean(1)
        mixed = residual * torch.eye(weights.shape[-1]) + (1 - residual) * weights
        result = mixed if result is None else mixed @ result
    return result


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("residual", [0.0, 0.5, 0.3, 1.0])
def test_rollout_is_the_product_of_the_layers(causal, residual):
    recording = recorded(torch.randn(3, 2, B, H, L, D), causal=causal)
    exact = product(recording, residual)
    for place in (0, 3, L - 1, -1, -L):
        row = regard.lens.rollout(recording, query=place, residual=residual)
        column = regard.lens.rollout(recording, source=place, residual=residual)
        torch.testing.assert_close(row.double(), exact[:, place], rtol=0, atol=1e-6)
        torch.testing.assert_close(column.double(), exact[:, :, place], rtol=0, atol=1e-6)
        torch.testing.assert_close(row.sum(-1), torch.ones(B))


def test_rollout_takes_half_by_default_and_a_position_first():
    recording = two_layers()
    exact = product(recording, 0.5)
    torch.testing.assert_close(
        regard.lens.rollout(recording, 4).double(), exact[:, 4], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({}, ValueError, "give query=, a target, or source="),
        ({"query": 1, "source": 2}, ValueError, "got query=1, source=2"),
        ({"query": L}, IndexError, "query=7 is out of range: there are 7 positions"),
        ({"source": -L - 1}, IndexError, "source=-8 is out of range"),
        ({"query": 1.0}, TypeError, "query must be an integer, but is 1.0"),
        ({"source": True}, TypeError, "source must be an integer, but is True"),
        ({"query": 0, "residual": 1.1}, ValueError, r"residual must lie in \[0, 1\], but is 1.1"),
        ({"query": 0, "residual": -0.1}, ValueError, r"residual must lie in \[0, 1\]"),
        ({"query": 0, "residual": math.nan}, ValueError, r"residual must lie in \[0, 1\]"),
        ({"query": 0, "residual": "half"}, TypeError, "residual must be a number, but is 'half'"),
        ({"query": 0, "residual": True}, TypeError, "residual must be a number, but is True"),
    ],
)
def test_rollouts_that_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        inspect.unwrap(regard.Recording.rollout)(two_layers(), **options)


@pytest.mark.parametrize(
    "recording",
    [
        lambda: two_layers(rows=[0]),
        lambda: recorded([torch.randn(2, B, H, L, D), torch.randn(2, B, H, 4, D)]),
        lambda: recorded([torch.randn(2, H, L, D)]),
        lambda: recorded([torch.randn(2, B, H, L, D), torch.randn(2, 1, H, L, D)]),
    ],
)
def test_rollout_needs_square_layers_over_the_same_positions(recording):
    with pytest.raises(ValueError, match=r"rollout needs layers of \(B, H, L, L\)"):
        regard.lens.rollout(recording(), query=-1)


def test_rollout_of_no_layer():
    with pytest.raises(ValueError, match="there is no layer"):
        regard.lens.rollout(two_layers(layers=[9]), query=0)
