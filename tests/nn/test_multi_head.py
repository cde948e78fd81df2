"""Many heads, against one head at a time and against torch's own layer."""

import pytest
import torch
from torch import nn

import regard
from regard.nn import MultiHeadAttention, merge_heads, split_heads


@pytest.mark.parametrize("groups", [6, 3, 1])
def test_layer_is_its_heads_side_by_side_and_the_output_matrix(groups):
    layer = MultiHeadAttention(30, 6, groups=groups, mask=regard.causal())
    x = torch.randn(2, 11, 30)
    contexts = [layer.head(index)(x) for index in range(6)]
    torch.testing.assert_close(layer(x), torch.cat(contexts, dim=-1) @ layer.output.weight.T)


def test_value_and_output_of_a_head_are_one_low_rank_map():
    layer = MultiHeadAttention(30, 6).double()
    x = torch.randn(11, 30, dtype=torch.float64)
    _, pattern = layer.with_pattern(x)
    total = torch.zeros_like(x)
    for index in range(6):
        part = slice(index * 5, index * 5 + 5)
        one_map = layer.value.weight[part].T @ layer.output.weight[:, part].T  # E → D → E
        assert torch.linalg.matrix_rank(one_map) == 5
        total += pattern[index].dense() @ x @ one_map
    torch.testing.assert_close(layer(x), total)


def test_it_is_torchs_own_layer():
    ours = MultiHeadAttention(30, 6, bias=True, mask=regard.causal())
    torchs = nn.MultiheadAttention(30, 6, batch_first=True)
    maps = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
        torchs.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
        torchs.out_proj.load_state_dict(ours.output.state_dict())
    x = torch.randn(2, 11, 30)
    hidden = ~regard.causal().visible(11, 11)
    expected, weights = torchs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    context, pattern = ours.with_pattern(x)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(pattern.dense(), weights)


def test_cross_attention_reads_another_sequence():
    layer = MultiHeadAttention(30, 6, source_dim=17)
    x, source = torch.randn(2, 11, 30), torch.randn(2, 13, 17)
    context, pattern = layer.with_pattern(x, source)
    assert context.shape == (2, 11, 30)
    assert pattern.shape == (2, 6, 11, 13)
    torch.testing.assert_close(pattern.dense().sum(-1), torch.ones(2, 6, 11))


def test_later_tokens_do_not_matter():
    layer = MultiHeadAttention(30, 6, mask=regard.causal())
    x = torch.randn(11, 30)
    changed = x.clone()
    changed[7:] += 1
    torch.testing.assert_close(layer(x)[:7], layer(changed)[:7], rtol=0, atol=0)
    assert not torch.equal(layer(x)[7:], layer(changed)[7:])


def test_dropout_works_in_training_only():
    layer = MultiHeadAttention(30, 6, dropout=0.5)
    x = torch.randn(11, 30)
    torch.testing.assert_close(layer.eval()(x), layer(x), rtol=0, atol=0)
    assert not torch.equal(layer.train()(x), layer(x))


def test_split_and_merge_undo_each_other():
    x = torch.randn(2, 11, 30)
    heads = split_heads(x, 6)
    assert heads.shape == (2, 6, 11, 5)
    torch.testing.assert_close(heads[1, 4, 7], x[1, 7, 20:25], rtol=0, atol=0)
    torch.testing.assert_close(merge_heads(heads), x, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dim": 30, "heads": 7}, "heads=7 must divide dim=30"),
        ({"dim": 30, "heads": 0}, "heads=0 must divide dim=30"),
        ({"dim": 30, "heads": 6, "groups": 4}, "groups=4 must divide heads=6"),
        ({"dim": 30, "heads": 6, "dropout": 1.5}, "dropout must lie in"),
    ],
)
def test_sizes_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**arguments)


def test_wrong_channels_are_named():
    layer = MultiHeadAttention(30, 6)
    with pytest.raises(ValueError, match="source has shape"):
        layer(torch.randn(11, 30), torch.randn(11, 29))
    with pytest.raises(ValueError, match="does not divide 10 channels"):
        split_heads(torch.randn(3, 10), 4)


def test_a_head_that_cannot_be_extracted_is_refused():
    with pytest.raises(IndexError, match="index is 6, but there are heads 0 to 5"):
        MultiHeadAttention(30, 6).head(6)
    with pytest.raises(ValueError, match="no bias and one input width"):
        MultiHeadAttention(30, 6, bias=True).head(0)


def test_a_mask_that_is_a_tensor_is_named():
    with pytest.raises(TypeError, match=r"mask must be .* Tensor; wrap a tensor as regard.dense"):
        MultiHeadAttention(12, 3, mask=torch.ones(5, 5).bool())
