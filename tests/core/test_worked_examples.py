"""Worked examples from textbooks on attention, small enough to check by hand."""

import pytest
import torch

import regard

# The figures are given to four decimals.
ROUNDED = {"rtol": 0, "atol": 5.1e-5}

CONTEXT = [
    [0.2996, 0.8053],
    [0.3061, 0.8210],
    [0.3058, 0.8203],
    [0.2948, 0.7939],
    [0.2927, 0.7891],
    [0.2990, 0.8040],
]
CAUSAL_WEIGHTS = [
    [1.0],
    [0.3986, 0.6014],
    [0.2526, 0.3791, 0.3683],
    [0.2265, 0.2839, 0.2794, 0.2103],
    [0.1952, 0.2363, 0.2331, 0.1820, 0.1534],
    [0.1557, 0.2092, 0.2048, 0.1419, 0.1089, 0.1794],
]


@pytest.fixture
def projected():
    """Query, key and value of six tokens, by three matrices drawn in this order."""
    x = torch.tensor(
        [
            [0.43, 0.15, 0.89],
            [0.55, 0.87, 0.66],
            [0.57, 0.85, 0.64],
            [0.22, 0.58, 0.33],
            [0.77, 0.25, 0.10],
            [0.05, 0.80, 0.55],
        ]
    )
    torch.manual_seed(123)
    return [x @ torch.rand(3, 2) for _ in range(3)]


def test_unmasked_context(projected):
    expected = torch.tensor(CONTEXT)
    torch.testing.assert_close(regard.attention(*projected), expected, **ROUNDED)
    torch.testing.assert_close(regard.explain(*projected).context, expected, **ROUNDED)


def test_causal_weights(projected):
    expected = torch.tensor([row + [0.0] * (6 - len(row)) for row in CAUSAL_WEIGHTS])
    steps = regard.explain(*projected, mask=regard.causal())
    torch.testing.assert_close(steps.weights, expected, **ROUNDED)
    _, pattern = regard.attention_with_pattern(*projected, mask=regard.causal())
    torch.testing.assert_close(pattern.dense(), expected, **ROUNDED)


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
