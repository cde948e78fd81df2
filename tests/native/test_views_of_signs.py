"""Tensors whose memory differs from their values: negative views, zeros without storage."""

import pytest
import torch

import regard
from regard.backends import native

pytestmark = pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")

NAMES = ["query", "key", "value", "bias", "sink"]


def negative(tensor):
    """The same numbers, of which the negatives lie in memory."""
    return torch._neg_view(-tensor)


def results(tensors):
    query, key, value, bias, sink = (tensors[name] for name in NAMES)
    mask = regard.causal() & regard.dense(bias)
    options = {"mask": mask, "sink": sink, "backend": "native"}
    context, readouts = regard.attention(
        query, key, value, read=[regard.readouts.Entropy()], **options
    )
    _, pattern = regard.attention_with_pattern(query, key, value, **options)
    rows = torch.ones(2, 3, 11)
    return context, *readouts, pattern.entropy(), rows @ pattern, negative(rows) @ pattern


@pytest.mark.parametrize("name", NAMES)
def test_a_view_with_the_negative_bit_is_resolved(name):
    draw = torch.Generator().manual_seed(3)
    shapes = {"query": (2, 11, 5), "key": (2, 11, 5), "value": (2, 11, 7), "bias": (11, 11)}
    tensors = {each: torch.randn(shape, generator=draw) for each, shape in shapes.items()}
    tensors["sink"] = torch.randn(2, generator=draw)
    expected = results(tensors)
    assert torch.equal(expected[-1], expected[-2])
    assert all(map(torch.equal, results(tensors | {name: negative(tensors[name])}), expected))


def test_zeros_without_memory_are_zeros():
    key = torch.randn(2, 11, 5)
    pattern = regard.Pattern(torch._efficientzerotensor((2, 11, 5)), key, mask=regard.causal())
    expected = torch.arange(1, 12).log().expand(2, 11)
    torch.testing.assert_close(pattern.entropy(), expected, rtol=1e-6, atol=1e-6)  # of float32
