"""The drop-in against torch's own call, over its whole signature."""

import inspect
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support import draws

import regard

normal = partial(draws.normal, dtype=torch.float64)


def same(query, key, value, **options):
    """Compare context and gradients, in float64, where no more than rounding may differ."""
    names = [n for n in ("attn_mask",) if n in options and options[n].is_floating_point()]
    results = []
    for call in (regard.scaled_dot_product_attention, F.scaled_dot_product_attention):
        tensors = [t.detach().clone().requires_grad_() for t in (query, key, value)]
        arguments = dict(options)
        for name in names:
            arguments[name] = options[name].detach().clone().requires_grad_()
        context = call(*tensors, **arguments)
        wanted = [*tensors, *(arguments[name] for name in names)]
        gradients = torch.autograd.grad((context * 1.5).sum(), wanted)
        results.append((context, *gradients))
    for ours, torchs in zip(*results, strict=True):
        assert ours.shape == torchs.shape
        torch.testing.assert_close(ours, torchs, rtol=1e-10, atol=1e-12)


LEADS = [(), (3,), (2, 3), (2, 1), (5, 2, 3)]


@given(st.data())
def test_all_combinations_of_arguments(data):
    lead = data.draw(st.sampled_from(LEADS))
    queries, keys = (data.draw(st.sampled_from([1, 2, 5, 7])) for _ in range(2))
    dim, dim_value = (data.draw(st.sampled_from([1, 4, 11])) for _ in range(2))
    options = {}
    kind = data.draw(st.sampled_from(["none", "causal", "bool", "float"]))
    shapes = st.sampled_from([(queries, keys), (1, keys), (*lead, queries, keys)])
    if kind == "causal":
        options["is_causal"] = True
    elif kind == "bool":
        options["attn_mask"] = normal(*data.draw(shapes), seed=4) > 0.2
    elif kind == "float":
        options["attn_mask"] = normal(*data.draw(shapes), seed=4)
    if data.draw(st.booleans()):
        options["scale"] = data.draw(st.sampled_from([0.3, 1.0]))
    query, key = normal(*lead, queries, dim, seed=1), normal(*lead, keys, dim, seed=2)
    same(query, key, normal(*lead, keys, dim_value, seed=3), **options)


@pytest.mark.parametrize(("queries", "keys"), [(3, 7), (7, 3), (5, 5), (1, 7)])
def test_is_causal_aligns_at_the_top_left(queries, keys):
    tensors = [normal(2, 3, n, 8, seed=n) for n in (queries, keys, keys)]
    same(*tensors, is_causal=True)
    context = regard.scaled_dot_product_attention(*tensors, is_causal=True)
    torch.testing.assert_close(context[:, :, 0], tensors[2][:, :, 0])  # query 0 sees key 0 alone


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_rows_fully_masked_are_zero(kind):
    allowed = normal(5, 7, seed=1) > 0
    allowed[2] = False
    mask = (
        allowed if kind == "bool" else torch.zeros(5, 7).double().masked_fill(~allowed, -torch.inf)
    )
    query, key, value = normal(2, 5, 4), normal(2, 7, 4, seed=2), normal(2, 7, 3, seed=3)
    for dtype in (torch.float64, torch.float32):
        attn_mask = mask if kind == "bool" else mask.to(dtype)
        tensors = [t.to(dtype) for t in (query, key, value)]
        ours = regard.scaled_dot_product_attention(*tensors, attn_mask=attn_mask)
        torchs = F.scaled_dot_product_attention(*tensors, attn_mask=attn_mask)
        torch.testing.assert_close(ours, torchs)
        assert not bool(ours[:, 2].any())


@pytest.mark.parametrize(
    ("lead", "others"),
    [
        ((2, 1), (1, 3)),
        ((1, 3), (2, 3)),
        ((2, 3), (1, 1)),
        ((3,), (1,)),
        ((2, 3), (3,)),
        ((), (2,)),
    ],
)
def test_leading_dimensions_broadcast(lead, others):
    query, key, value = (
        normal(*lead, 5, 4),
        normal(*others, 7, 4, seed=1),
        normal(*others, 7, 3, seed=2),
    )
    same(query, key, value)
    same(query, key, value, attn_mask=normal(5, 7, seed=3) > 0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (6, 1), (6, 6)])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_enable_gqa(lead, heads, groups, masked):
    query = normal(*lead, heads, 5, 4)
    key, value = normal(*lead, groups, 7, 4, seed=1), normal(*lead, groups, 7, 3, seed=2)
    options = {"attn_mask": normal(heads, 5, 7, seed=3)} if masked else {"is_causal": True}
    same(query, key, value, enable_gqa=True, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_other_dtypes_differ_by_no_more_than_a_rounding(is_causal, dtype):
    tensors = [normal(2, 3, 37, 8, seed=s, dtype=dtype) for s in range(3)]
    ours = regard.scaled_dot_product_attention(*tensors, is_causal=is_causal)
    torchs = F.scaled_dot_product_attention(*tensors, is_causal=is_causal)
    assert ours.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps  # of numbers up to about 4
    torch.testing.assert_close(ours, torchs, rtol=0, atol=tolerance)


def test_dropout_keeps_the_right_share_and_scales_it():
    value = torch.eye(400)
    query, key = torch.zeros(1, 4), torch.zeros(400, 4)
    torch.manual_seed(1)
    context = regard.scaled_dot_product_attention(query, key, value, dropout_p=0.25)
    kept = context[context != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 400 / 0.75))
    assert abs(kept.numel() / 400 - 0.75) < 5 * (0.25 * 0.75 / 400) ** 0.5  # five deviations
    assert not bool(regard.scaled_dot_product_attention(query, key, value, dropout_p=1.0).any())


def test_empty_tensors():
    same(normal(2, 3, 0, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 5))
    same(normal(0, 3, 5, 4), normal(0, 3, 7, 4), normal(0, 3, 7, 5))


def test_arguments_have_torch_s_names_order_and_defaults():
    ours = inspect.signature(regard.scaled_dot_product_attention).parameters
    documented = {
        "query": inspect.Parameter.empty,
        "key": inspect.Parameter.empty,
        "value": inspect.Parameter.empty,
        "attn_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": None,
        "enable_gqa": False,
    }
    assert {name: p.default for name, p in ours.items()} == documented
    assert list(ours) == list(documented)
    signature = re.search(r"_attention\((.*?)\)", F.scaled_dot_product_attention.__doc__, re.DOTALL)
    torchs = [part.split("=")[0].strip() for part in signature[1].split(",")]
    assert [name for name in torchs if name != "*"] == list(documented)


def test_it_can_replace_torch_s_function(monkeypatch):
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    layer.train()
    expected = layer(x, x, x, need_weights=False)[0]
    monkeypatch.setattr(F, "scaled_dot_product_attention", regard.scaled_dot_product_attention)
    torch.testing.assert_close(layer(x, x, x, need_weights=False)[0], expected)


def test_attn_mask_and_is_causal_are_intersected():
    x = torch.randn(3, 5, 4)
    mask = torch.rand(5, 5) < 0.7
    both = regard.scaled_dot_product_attention(x, x, x, mask, is_causal=True)
    expected = F.scaled_dot_product_attention(x, x, x, mask & torch.ones(5, 5).bool().tril())
    torch.testing.assert_close(both, expected)


def test_key_and_value_may_have_groups_of_their_own():
    query, key, value = torch.randn(6, 5, 4), torch.randn(2, 7, 4), torch.randn(3, 7, 4)
    context = regard.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    repeated = key.repeat_interleave(3, 0), value.repeat_interleave(2, 0)
    torch.testing.assert_close(context, F.scaled_dot_product_attention(query, *repeated))
    with pytest.raises(ValueError, match="6 heads are not a multiple of 4 key or value heads"):
        regard.scaled_dot_product_attention(query, key, torch.randn(4, 7, 4), enable_gqa=True)


def test_errors():
    x = torch.randn(2, 3, 5, 4)
    grouped = torch.randn(2, 6, 5, 4)
    with pytest.raises(ValueError, match=r"do not broadcast: .*enable_gqa=True lets query heads"):
        regard.scaled_dot_product_attention(grouped, x, x)
    with pytest.raises(ValueError, match=r"query's heads H=5 must be a multiple of the key's G=3"):
        regard.scaled_dot_product_attention(torch.randn(2, 5, 5, 4), x, x, enable_gqa=True)
    with pytest.raises(
        TypeError, match=r"mask must be bool or floating point, but is torch\.int64"
    ):
        regard.scaled_dot_product_attention(x, x, x, torch.ones(5, 5, dtype=torch.int64))
