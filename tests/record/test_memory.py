"""What a recording keeps, in bytes: queries and keys, and nothing of what they were cut out of."""

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.gpt import GPT, GPTCache, GPTConfig
from regard.nn import MultiHeadAttention

LENGTH, HEADS, DIM = 61, 6, 8  # of a head


class Fused(nn.Module):
    """Layers that make query, key and value by one product, and call SDPA on its slices."""

    def __init__(self, layers, heads, groups, dim, dtype=torch.float32):
        super().__init__()
        self.widths = [heads * dim, groups * dim, groups * dim]
        self.dim = dim
        self.h = nn.ModuleList(
            nn.Linear(heads * dim, sum(self.widths), bias=False, dtype=dtype) for _ in range(layers)
        )

    def forward(self, x):
        for made in self.h:
            query, key, value = (
                part.unflatten(-1, (-1, self.dim)).transpose(1, 2)
                for part in made(x).split(self.widths, dim=-1)
            )
            context = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            x = x + context.transpose(1, 2).flatten(2)
        return x


def kept(model, inputs, **options):
    """The bytes that a recording keeps of a run, when all else of it is gone."""
    gc.collect()
    gc.freeze()  # for good: what is there now, the model's weights among it, is not looked through
    with regard.record(model, **options) as recording:
        model(inputs)
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor]
    assert len(recording) == 2
    held = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())


def gpt(**options):
    size = {"context": LENGTH, "layers": 2, "heads": HEADS, "dim": HEADS * DIM}
    return GPT(GPTConfig(vocab_size=31, **size, **options))


def stack(groups=HEADS):
    layer = MultiHeadAttention(HEADS * DIM, HEADS, groups=groups, mask=regard.causal())
    return nn.Sequential(layer, layer)


IDS, X = torch.arange(LENGTH)[None] % 31, torch.linspace(-1, 1, LENGTH * HEADS * DIM)
MODELS = {
    "gpt": (gpt, HEADS, IDS),
    "grouped": (lambda: gpt(groups=2), 2, IDS),
    "rotary": (lambda: gpt(positions="rotary"), HEADS, IDS),
    "window": (lambda: gpt(window=17), HEADS, IDS),
    "multi-head": (stack, HEADS, X.view(1, LENGTH, -1)),
    "multi-head, grouped": (lambda: stack(3), 3, X.view(1, LENGTH, -1)),
    "fused sdpa": (lambda: Fused(2, HEADS, 2, DIM), 2, X.view(1, LENGTH, -1)),
}


@pytest.mark.parametrize("name", MODELS)
def test_only_queries_and_keys_are_stored(name):
    make, groups, inputs = MODELS[name]
    assert kept(make(), inputs) == 2 * (HEADS + groups) * LENGTH * DIM * 4


@pytest.mark.parametrize(
    ("heads", "groups"),
    [
        (slice(0, 3), 1),
        ([0, 1, 2, 5], 4),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in ((slice(2, 4), 2), ([1, 4], 2), ([5, 0], 2), (1, 1))
        ),
    ],
)
def test_of_grouped_heads_only_the_keys_of_selected_heads_are_stored(heads, groups):
    model, count = Fused(2, HEADS, 2, DIM), len(torch.arange(HEADS)[heads].reshape(-1))
    inputs = X.view(1, LENGTH, -1)
    assert kept(model, inputs, heads=heads) == 2 * (count + groups) * LENGTH * DIM * 4
    with regard.record(model) as whole:
        model(inputs)
    with regard.record(model, heads=heads) as some:
        model(inputs)
    expected = whole[1].dense()[:, heads].reshape(1, count, LENGTH, LENGTH)
    torch.testing.assert_close(some[1].dense(), expected)


def test_a_32_layer_32_head_model_at_32768_tokens_takes_the_memory_of_queries_and_keys():
    layers, heads, groups, length, dim = 32, 32, 8, 32_768, 128
    with FakeTensorMode():  # tensors without memory: their sizes are those of real ones
        model = Fused(layers, heads, groups, dim, torch.bfloat16)
        x = torch.empty(1, length, heads * dim, dtype=torch.bfloat16)
        with torch.no_grad(), regard.record(model) as recording:
            model(x)
        problems = [pattern.problem for pattern in recording]
        sizes = [t.untyped_storage().nbytes() for p in problems for t in (p.query, p.key)]
    assert len(recording) == layers
    assert sum(sizes) == layers * (heads + groups) * length * dim * 2 == 10 * 2**30
    assert all(p.rows.is_interval for p in problems)
    written = {"positions", "start", "stop"}  # tables of a mask, which nobody reads
    assert not any(written & vars(p.rows.bounds).keys() for p in problems)


def test_while_keys_grow_a_fraction_of_them_is_room():
    model = gpt()
    cache = GPTCache(model.config)
    with torch.no_grad(), regard.record(model) as recording:
        model(IDS[:, :50], cache=cache)
        for place in range(50, LENGTH):
            model(IDS[:, place : place + 1], cache=cache)
    for pattern in recording:
        key = pattern.problem.key
        assert key.shape[-2] == LENGTH
        room = key.untyped_storage().nbytes() / (HEADS * DIM * 4)
        assert LENGTH <= room <= LENGTH * 8 / 7 + 16
