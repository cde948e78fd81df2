"""One head, against worked examples and the written-out steps."""

import pytest
import torch

import regard
from regard.nn import Head

X = torch.tensor(
    [
        [0.43, 0.15, 0.89],
        [0.55, 0.87, 0.66],
        [0.57, 0.85, 0.64],
        [0.22, 0.58, 0.33],
        [0.77, 0.25, 0.10],
        [0.05, 0.80, 0.55],
    ]
)
# The figures have four decimals.
ROUNDED = {"rtol": 0, "atol": 5.1e-5}


def seeded_head(mask: regard.Mask | None = None) -> Head:
    torch.manual_seed(123)
    return Head.of(torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2), mask=mask)


def test_unmasked_context_is_the_known_figure():
    expected = torch.tensor(
        [
            [0.2996, 0.8053],
            [0.3061, 0.8210],
            [0.3058, 0.8203],
            [0.2948, 0.7939],
            [0.2927, 0.7891],
            [0.2990, 0.8040],
        ]
    )
    torch.testing.assert_close(seeded_head()(X), expected, **ROUNDED)


def test_causal_weights_are_the_known_figures():
    rows = [
        [1.0],
        [0.3986, 0.6014],
        [0.2526, 0.3791, 0.3683],
        [0.2265, 0.2839, 0.2794, 0.2103],
        [0.1952, 0.2363, 0.2331, 0.1820, 0.1534],
        [0.1557, 0.2092, 0.2048, 0.1419, 0.1089, 0.1794],
    ]
    expected = torch.tensor([row + [0.0] * (6 - len(row)) for row in rows])
    _, pattern = seeded_head(regard.causal()).with_pattern(X)
    torch.testing.assert_close(pattern.dense(), expected, **ROUNDED)


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


@pytest.mark.parametrize("arguments", [{"d_in": 0, "d_out": 2}, {"d_in": 2, "d_out": 0}])
def test_sizes_must_be_positive(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        Head(**arguments)


def test_dropout_of_everything_is_refused():
    with pytest.raises(ValueError, match="dropout must lie in"):
        Head(2, 3, dropout=1.0)


def test_matrices_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        Head.of(torch.rand(3, 2), torch.rand(3, 2), torch.rand(2, 3))
