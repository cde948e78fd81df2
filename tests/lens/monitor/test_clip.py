"""The factors of QK-clip, applied to weights whose scores are read once more."""

import pytest
import torch

import regard
from regard.gpt import GPT, GPTConfig
from regard.lens.monitor.clip import factors
from regard.lens.monitor.history import LayerPlace, UpdateReading
from regard.nn import MultiHeadAttention


def read(model, x):
    monitor = regard.Monitor(model, every=1)
    with monitor.update():
        model(x)
    return monitor


@torch.no_grad()
def clip(attention, layer):
    """Multiply the rows of queries and keys, and their biases."""
    for part in (attention.c_attn.weight, attention.c_attn.bias):
        query, key, _ = part.split(attention.widths)
        query.unflatten(0, (attention.heads, -1)).movedim(0, -1).mul_(layer.query.float())
        key.unflatten(0, (attention.groups, -1)).movedim(0, -1).mul_(layer.key.float())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_head_above_the_bound_comes_to_it_and_no_other_changes(groups):
    shape = {"layers": 1, "heads": 4, "dim": 24, "context": 11, "vocab_size": 31}
    model = GPT(GPTConfig(**shape, groups=groups, positions="rotary", initial_std=0.5))
    attention, ids = model.h[0].attn, torch.randint(31, (5, 11))
    torch.nn.init.normal_(attention.c_attn.bias)
    monitor = read(model, ids)
    (before,) = monitor.values("max_logit")
    tau = float(before.sort().values[1:3].mean())
    (layer,) = monitor.qk_clip(tau)
    assert (layer.kind, layer.layer, layer.name) == ("self", 0, "h.0.attn")
    assert layer.key.shape == (groups,)
    clip(attention, layer)
    (after,) = read(model, ids).values("max_logit")
    # Products of numbers that were rounded twice more.
    torch.testing.assert_close(after, before.clamp(max=tau), rtol=1e-5, atol=0)
    assert torch.equal(layer.gamma < 1, before > tau)


def test_layers_within_the_bound_and_updates_that_were_not_read_have_no_factors():
    layer, x = MultiHeadAttention(6, 2), torch.ones(1, 5, 6)
    monitor = regard.Monitor(layer, every=2)
    assert monitor.qk_clip() == ()
    largest = []
    for _ in range(2):
        with monitor.update():
            layer(x)
        largest.append(monitor.qk_clip(1e-9))
    assert monitor.qk_clip() == ()
    assert len(largest[1]) == 0, "update 1 was not read"


def test_scores_that_are_negative_or_no_numbers_are_left_alone():
    layer, x = MultiHeadAttention(4, 2), torch.ones(1, 5, 4)
    with torch.no_grad():
        layer.query.weight.fill_(1.0)
        layer.key.weight.fill_(-1.0)
        layer.query.weight[2:] = 1e30  # whose product is not a number in float32
        layer.key.weight[2:] = 1e30
    monitor = read(layer, x)
    assert monitor.values("max_logit")[0, 0] < 0
    assert not monitor.values("max_logit")[0, 1] < torch.inf
    assert monitor.qk_clip(1.0) == ()


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"of \['entropy'\] none is a MaxScore"):
        regard.Monitor(read=[regard.readouts.Entropy()]).qk_clip()
    with pytest.raises(ValueError, match="tau must be a finite number above 0, but is 0"):
        regard.Monitor().qk_clip(0)


def test_a_largest_score_that_is_infinite_clips_no_head():
    place = LayerPlace("self", 0, "attn", heads=2, groups=2)
    values = {"max_logit": torch.tensor([torch.inf, 8.0], dtype=torch.float64)}
    (clip,) = factors(UpdateReading(0, (place,), values), "max_logit", tau=2.0)
    assert clip.gamma.tolist() == [1.0, 0.25]


def test_there_are_no_factors_of_an_update_that_was_not_read():
    layer = MultiHeadAttention(6, 2, mask=regard.causal())
    layer.load_state_dict({n: torch.ones_like(t) for n, t in layer.state_dict().items()})
    monitor = regard.Monitor(layer, every=2)
    factors_of_updates = []
    for _ in range(2):
        with monitor.update():
            layer(torch.ones(1, 5, 6)).sum().backward()
        factors_of_updates.append(len(monitor.qk_clip(tau=1.0)))
    assert factors_of_updates == [1, 0]
