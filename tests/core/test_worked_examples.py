"""Worked examples from textbooks on attention, small enough to check by hand."""

import pytest
import torch
from support.textbook import CAUSAL_WEIGHTS, CONTEXT, ROUNDED, X, matrices

import regard


@pytest.fixture
def projected():
    """Query, key and value of the six tokens."""
    return [X @ matrix for matrix in matrices()]


def test_unmasked_context(projected):
    torch.testing.assert_close(regard.attention(*projected), CONTEXT, **ROUNDED)
    torch.testing.assert_close(regard.explain(*projected).context, CONTEXT, **ROUNDED)


def test_causal_weights(projected):
    steps = regard.explain(*projected, mask=regard.causal())
    torch.testing.assert_close(steps.weights, CAUSAL_WEIGHTS, **ROUNDED)
    _, pattern = regard.attention_with_pattern(*projected, mask=regard.causal())
    torch.testing.assert_close(pattern.dense(), CAUSAL_WEIGHTS, **ROUNDED)


def test_causal_averages():
    torch.manual_seed(123)
    x = torch.rand(4, 8, 32)
    by_loop = torch.stack([x[:, : t + 1].mean(1) for t in range(8)], dim=1)
    triangle = torch.tril(torch.ones(8, 8))
    by_matrix = triangle / triangle.sum(1, keepdim=True) @ x
    scores = torch.zeros(8, 8).masked_fill(triangle == 0, -torch.inf)
    by_softmax = torch.softmax(scores, -1) @ x
    zeros = torch.zeros(4, 8, 5)  # attention whose scores are all zero
    by_attention = regard.attention(zeros, zeros, x, mask=regard.causal())
    by_steps = regard.explain(zeros, zeros, x, mask=regard.causal()).context
    begin = [[0.2961, 0.5166, 0.2517], [0.5070, 0.6112, 0.5837], [0.4383, 0.5808, 0.5169]]
    for means in (by_loop, by_matrix, by_softmax, by_attention, by_steps):
        torch.testing.assert_close(means, by_loop)
        torch.testing.assert_close(means[0, :3, :3], torch.tensor(begin), **ROUNDED)
        last = torch.tensor([0.6291, 0.6708, 0.4074])
        torch.testing.assert_close(means[0, 7, :3], last, **ROUNDED)
