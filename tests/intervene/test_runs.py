"""Changes by number in runs that do not go on from each other, and in those that do."""

import pytest
import torch
from support.caches import STEPWISE, B, D, Decoder, H, T, decoded, sequence
from torch import nn

import regard

E = 6 * D


class Pooling(nn.Module):
    """Attends to a source, perhaps after attention of the source to itself."""

    def __init__(self, *, encodes):
        super().__init__()
        self.layers = nn.MultiheadAttention(E, H, batch_first=True) if encodes else None
        self.cross_attn = nn.MultiheadAttention(E, H, batch_first=True)

    def forward(self, x, source, attn_mask=None):
        if self.layers is not None:
            source, _ = self.layers(source, source, source)
        return self.cross_attn(x, source, source, attn_mask=attn_mask)[0]


@pytest.mark.parametrize("encodes", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_each_run_over_one_source_counts_its_queries_from_the_first(encodes, count):
    model, source = Pooling(encodes=encodes).eval(), torch.randn(B, 7, E)
    runs, hidden = torch.randn(3, B, count, E), torch.zeros(count, 7, dtype=torch.bool)
    hidden[0, 1:3] = True
    with torch.no_grad():
        expected = [model(x, source, hidden) for x in runs]
        plain = [model(x, source) for x in runs]
        with regard.intervene(model) as change:
            change.knock_out(kind="cross", queries=0, keys=[1, 2])
            actual = [model(x, source) for x in runs]
    for changed, right, before in zip(actual, expected, plain, strict=True):
        torch.testing.assert_close(changed, right, rtol=0, atol=1e-6)
        assert not torch.allclose(changed, before)


@pytest.mark.parametrize("cross_first", [False, True])
def test_steps_with_a_cache_count_on(cross_first):
    """Also where cross-attention comes before the self-attention of its run, as in Idefics."""
    model, (query, key), source = (
        Decoder(cross_first=cross_first),
        sequence(),
        torch.randn(B, H, 7, D),
    )
    with regard.intervene(model) as change, regard.record(model) as recording:
        change.knock_out(kind="cross", queries=[2, 6, 7], keys=[1, 2])
        decoded(model, query, key, source, STEPWISE)
    (pattern,) = recording.of_kind("cross")
    hidden = pattern.dense()[..., 1:3] == 0
    assert hidden.all(-1)[0, 0].nonzero().flatten().tolist() == [2, 6, 7]
    assert hidden.sum() == B * H * 3 * 2
    assert pattern.shape[-2] == T
