"""One head, against worked examples and the written-out steps."""

import pytest
import torch
from support.textbook import CAUSAL_WEIGHTS, CONTEXT, ROUNDED, X, matrices

import regard
from regard.nn import Head


def test_unmasked_context_is_the_known_figure():
    torch.testing.assert_close(Head.of(*matrices())(X), CONTEXT, **ROUNDED)


def test_causal_weights_are_the_known_figures():
    _, pattern = Head.of(*matrices(), mask=regard.causal()).with_pattern(X)
    torch.testing.assert_close(pattern.dense(), CAUSAL_WEIGHTS, **ROUNDED)


def test_batched_input_equals_each_of_its_sequences():
    head = Head(7, 5, mask=regard.causal())
    x = torch.randn(3, 11, 7)
    torch.testing.assert_close(head(x), torch.stack([head(one) for one in x]))


def test_it_is_the_written_out_computation():
    head = Head(7, 5, mask=regard.causal()).double()
    x = torch.randn(11, 7, dtype=torch.float64)
    steps = regard.explain(x @ head.query, x @ head.key, x @ head.value, mask=regard.causal())
    torch.testing.assert_close(head(x), steps.context)


def test_source_of_another_length_gives_keys_and_values():
    head = Head(7, 5)
    x, source = torch.randn(3, 11, 7), torch.randn(3, 13, 7)
    context, pattern = head.with_pattern(x, source)
    assert context.shape == (3, 11, 5)
    assert pattern.shape == (3, 11, 13)
    torch.testing.assert_close(context, pattern @ (source @ head.value))


def test_dropout_works_in_training_only():
    head = Head(7, 5, dropout=0.5)
    x = torch.randn(11, 7)
    torch.testing.assert_close(head.eval()(x), head(x), rtol=0, atol=0)
    assert not torch.equal(head.train()(x), head(x))


@pytest.mark.parametrize("shape", [(11, 6), (7,), (3, 11, 5)])
def test_wrong_channels_are_named(shape):
    with pytest.raises(ValueError, match=r"x has shape .* takes \(T, 7\)"):
        Head(7, 5)(torch.randn(shape))


@pytest.mark.parametrize("arguments", [{"dim": 0, "head_dim": 2}, {"dim": 2, "head_dim": 0}])
def test_sizes_must_be_positive(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        Head(**arguments)


def test_dropout_of_everything_is_refused():
    with pytest.raises(ValueError, match="dropout must lie in"):
        Head(2, 3, dropout=1.0)


def test_matrices_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        Head.of(torch.rand(3, 2), torch.rand(3, 2), torch.rand(2, 3))


def test_a_mask_that_is_a_tensor_is_named():
    with pytest.raises(TypeError, match=r"mask must be .* Tensor; wrap a tensor as regard.dense"):
        Head(3, 2, mask=torch.ones(5, 5).bool())
