"""Scores of any size, where no kernel computes: float64, and float32 without the library.

As in tests/native/test_large_scores.py, every dot product is exact.
"""

import math

import pytest
import torch
from support.cpu_paths import streamed

import regard

D, QUERIES, KEYS = 16, 31, 67


def signs(*shape, seed):
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 2.0**5, 2.0**9, 2.0**17, 2.0**33, 2.0**50])
@pytest.mark.parametrize("sink", [None, 0.0, 1.0, 4.0])
def test_weights_are_exact(dtype, size, sink):
    query = size * signs(2, 3, QUERIES, D, seed=1).to(dtype)
    key = size * signs(2, 3, KEYS, D, seed=2).to(dtype)
    options = {} if sink is None else {"sink": torch.full((3,), sink * size**2 * 4, dtype=dtype)}
    exact = regard.explain(query.double(), key.double(), key.double(), **options).weights
    with streamed(2**11):
        pattern = regard.Pattern(query, key, **options)
        first, picture = (pattern.dense().double(), pattern.image(7, 5, queries=(3, 20)))
        rounding = 32 * torch.finfo(dtype).eps
        assert (first - exact).abs().max() <= rounding
        assert torch.equal(pattern.dense().double(), first)
        assert torch.equal(pattern[..., 4:60].double(), first[..., 4:60])
        assert (pattern.max().double() - exact.amax(-1)).abs().max() <= rounding
        total = exact[..., 3:20, :].mean((-1, -2))
        assert (picture.double().mean((-1, -2)) - total).abs().max() <= rounding


@pytest.mark.parametrize("backend", ["native", "torch_sdpa", "eager"])
@pytest.mark.parametrize("score", [8e4, 8e6, 8e8, 2.0**33, 1e20])
def test_a_pattern_is_one_hot_whatever_computed_the_context(backend, score):
    query = torch.randn(1, 2, QUERIES, 64, generator=torch.Generator().manual_seed(3))
    query = (
        query * math.sqrt(score * 8) / query.norm(dim=-1, keepdim=True)
    )  # scores are not integers
    context, pattern = regard.attention_with_pattern(
        query, query, query, backend=backend, scale=1 / 8
    )
    assert (context - query).abs().max() <= 1e-6 * query.abs().max()
    assert (pattern.dense() - torch.eye(QUERIES)).abs().max() <= 1e-6
