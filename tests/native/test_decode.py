"""Few queries against many keys: the definition's results, on every set of instructions."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import cases
from support.cpu_paths import SETS, forced
from support.draws import normal

import regard
from regard.masks.hiding import add_to_scores

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the largest value. In float32 every sum rounds some times; in the half precisions the inputs
# are exact and the result is rounded once.
ROUNDINGS = {torch.float32: 32, torch.bfloat16: 1, torch.float16: 1}
B, G, D, DV = 2, 2, 37, 19
# Keys of several chunks of 512, and enough of them that a group of 16 rows counts as few.
S = 5003


def tensors(queries=1, members=3, keys=S, dim=D, dim_value=DV, dtype=torch.float32):
    """Query, key and value, with so many heads in a group."""
    return (
        normal(B, G * members, queries, dim, seed=1, dtype=dtype),
        normal(B, G, keys, dim, seed=2, dtype=dtype),
        normal(B, G, keys, dim_value, seed=3, dtype=dtype),
    )


def native(query, key, value, **options):
    """Context and log-sum-exp."""
    options["generator"] = torch.Generator().manual_seed(5)
    context, pattern = regard.attention_with_pattern(query, key, value, **options, backend="native")
    return context, pattern.logsumexp


def check(query, key, value, **options):
    context, logsumexp = native(query, key, value, **options)
    options["generator"] = torch.Generator().manual_seed(5)
    exact = regard.explain(query.double(), key.double(), value.double(), **options)
    fully_masked = exact.logsumexp == -math.inf

    largest = float(value.abs().max()) / (1 - min(options.get("dropout", 0.0), 0.9))
    bound = ROUNDINGS[query.dtype] * torch.finfo(query.dtype).eps * largest
    error = cases.error(context, exact.context)
    assert error <= bound, f"context: error {error:.3g}, but at most {bound:.3g}"
    assert cases.error(logsumexp, exact.logsumexp, fully_masked) <= 1e-5
    assert torch.equal(logsumexp == -math.inf, fully_masked)
    assert not context[fully_masked].any()


POSITIONS = torch.arange(S)
HEADS = 3 * G
MASKS = {
    "all": regard.Mask(),
    "causal": regard.causal(),
    "early": regard.causal(offset=700),
    "fully masked rows": regard.causal(offset=-1),
    "window": regard.causal() & regard.window(37),
    "window across chunks": regard.causal(offset=1500) & regard.window(701),
    "documents": regard.documents(POSITIONS // 997),
    "padding": regard.padding(torch.stack([POSITIONS >= 1201, POSITIONS < 511])),
    "nothing": regard.padding(POSITIONS < 0),
    "hidden": regard.causal()
    & regard.masks.hide(slice(700, 3001))
    & regard.masks.hide([0, 4999], [-1]),
    "hidden from heads": regard.masks.hide(slice(5, None, 611), heads=[0, -1]),
    "shifted": regard.masks.hide(3) & add_to_scores(-2.5, slice(40, 2001), heads=slice(2, None)),
    "prefix": regard.masks.prefix(311) & regard.causal(offset=0),
    "dense": regard.dense(normal(3, S, seed=9) > -0.5) & regard.causal(),
    "dense of heads": regard.dense(normal(HEADS, 1, S, seed=9) > 2.5),
}
OPTIONS = {
    "scale": {"scale": -0.1},
    "no scale": {"scale": 0.0},
    "softcap": {"softcap": 1.5, "scale": 1.0},
    "bias": {"bias": normal(HEADS, 1, S, seed=4)},
    "bias of rows": {"bias": normal(3, 1, seed=4)},
    "bias that hides": {"bias": normal(3, S, seed=4).masked_fill(POSITIONS % 5 == 0, -math.inf)},
    # Slopes so small that a logit thousands of keys away still has decimal places.
    "alibi": {"alibi": 0.5 ** torch.arange(7, HEADS + 7)},
    "sink": {"sink": normal(HEADS, seed=6)},
    "dropout": {"dropout": 0.3},
    "dropout of all": {"dropout": 1.0},
    "everything": {
        "softcap": 2.0,
        "bias": normal(B, 1, 3, S, seed=4),
        "alibi": 0.5 ** torch.arange(7, HEADS + 7),
        "sink": normal(HEADS, seed=6),
        "dropout": 0.6,
    },
}


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask(name, dtype, instructions):
    check(*tensors(3, dtype=dtype), mask=MASKS[name])


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_every_option(mask, name, dtype, instructions):
    check(*tensors(3, dtype=dtype), mask=MASKS[mask], **OPTIONS[name])


@given(cases.cases(dtypes=DTYPES, lengths=[1]), st.sampled_from(SETS or [None]))
def test_masks_and_options_crossed(case, name):
    with forced(name):
        context, logsumexp = native(case.query, case.key, case.value, **case.options)
    largest = float(case.value.abs().max())
    floor = (2 * torch.finfo(case.dtype).eps + case.rounding) * largest
    cases.close(context, case.exact.context, case.torchs_own(), case.fully_masked, floor)
    own = torch.logsumexp(case.plain_logits(), -1)
    cases.close(logsumexp, case.exact.logsumexp, own, case.fully_masked, 4 * case.rounding)
    assert not context[case.fully_masked].any()
    assert (logsumexp[case.fully_masked] == -math.inf).all()


@pytest.mark.each_once
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 511, 512, 513, 4095, 4096])
@pytest.mark.parametrize(("queries", "members"), [(1, 1), (1, 4), (2, 1), (7, 1), (2, 8), (5, 3)])
def test_sizes_around_those_of_vectors_tiles_and_chunks(queries, members, keys, instructions):
    for dtype in (torch.float32, torch.bfloat16):
        check(*tensors(queries, members, keys, dtype=dtype), mask=regard.causal())


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("dim", "dim_value"),
    [(1, 1), (3, 67), (15, 17), (16, 64), (48, 80), (96, 32), (64, 128), (131, 80), (256, 256)],
)
def test_head_dimensions(dim, dim_value, dtype, instructions):
    check(*tensors(2, 3, 1031, dim, dim_value, dtype), mask=regard.causal())
    check(*tensors(1, 5, 517, dim, dim_value, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["transposed", "columns", "gaps", "expanded"])
def test_strides(how, dtype, instructions):
    plain = tensors(2, dtype=dtype)
    if how == "expanded":
        plain = tuple(t[:1].expand(t.shape).clone() for t in plain)
    inputs = (cases.strided(t, how) for t in plain)
    for actual, wanted in zip(native(*inputs), native(*plain), strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [19, 64])
def test_memory_around_a_row_is_not_used(dim, dtype, instructions):
    plain = tensors(2, dim=dim, dim_value=dim, dtype=dtype)

    def fenced(tensor):
        wide = tensor.new_full((*tensor.shape[:-2], tensor.shape[-2] + 2, dim + 2), math.nan)
        wide[..., 1:-1, 1:-1] = tensor
        return wide[..., 1:-1, 1:-1]

    for actual, wanted in zip(native(*map(fenced, plain)), native(*plain), strict=True):
        assert torch.equal(actual, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("members", "keys"), [(1, 5003), (4, 5003), (1, 700)])
def test_results_do_not_depend_on_the_number_of_threads(
    members, keys, dtype, threads, instructions
):
    inputs = tensors(1, members, keys, 64, 64, dtype)
    options = {"mask": regard.causal(), "sink": normal(G * members), "alibi": normal(1).abs()}
    options["alibi"] = options["alibi"].expand(G * members)
    threads(1)
    alone = native(*inputs, **options)
    for count in (2, 3):
        threads(count)
        for _ in range(3):
            together = native(*inputs, **options)
            assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_the_rest_of_the_batch(dtype, instructions):
    inputs = tensors(2, dtype=dtype)
    keep = torch.stack([POSITIONS >= 1201, POSITIONS < 511])
    together = native(*inputs, mask=regard.padding(keep))
    for entry in range(B):
        alone = native(*(t[entry : entry + 1] for t in inputs), mask=regard.padding(keep[entry]))
        assert all(torch.equal(a[0], t[entry]) for a, t in zip(alone, together, strict=True))


@pytest.mark.parametrize("stray", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["fully masked rows", "early", "padding", "dense of heads"])
def test_hidden_values_do_not_affect_results(name, dtype, stray, instructions):
    query, key, value = tensors(1, 2, dtype=dtype)
    masks = MASKS | {"dense of heads": regard.dense(normal(2 * G, 1, S, seed=9) > 2.5)}
    clean = native(query, key, value, mask=masks[name])
    visible = regard.Pattern(query, key, mask=masks[name]).dense(limit=None) > 0
    unseen = ~visible.reshape(B, G, 2, S).any(2)
    assert unseen.any()
    key, value = (t.masked_fill(unseen[..., None], stray) for t in (key, value))
    assert all(map(torch.equal, clean, native(query, key, value, mask=masks[name])))


@pytest.mark.parametrize("stray", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_keys_that_only_another_row_of_its_group_sees(
    dtype, stray, instructions
):
    query, key, value = tensors(2, 2, dtype=dtype)
    clean = native(query, key, value, mask=regard.causal())
    value[:, :, -1] = stray
    context, logsumexp = native(query, key, value, mask=regard.causal())
    assert torch.equal(context[:, :, 0], clean[0][:, :, 0])
    assert torch.equal(logsumexp, clean[1])
    assert not context[:, :, 1].isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("members", [1, 4])
def test_a_visible_nan_propagates(members, dtype, instructions):
    query, key, value = tensors(1, members, dtype=dtype)
    spoilt = key.clone()
    spoilt[0, 0, 2600, 3] = math.nan
    context, logsumexp = native(query, spoilt, value)
    assert context[0, :members].isnan().all()
    assert logsumexp[0, :members].isnan().all()
    assert not context[0, members:].isnan().any()
    assert not context[1].isnan().any()

    value[0, 0, 2600, 3] = math.nan
    context, logsumexp = native(query, key, value)
    assert context[0, :members, :, 3].isnan().all()
    assert int(context.isnan().sum()) == members
    assert not logsumexp.isnan().any()


@pytest.mark.parametrize("logit", [1e4, -1e4])
def test_large_logits(logit, instructions):
    query, key, value = tensors(1, 2)
    key[..., 0], query[..., 0] = 0, 1
    key[:, :, 1234, 0] = logit * D**0.5
    context, logsumexp = native(query, key, value)
    exact = regard.explain(query.double(), key.double(), value.double())
    assert cases.error(context, exact.context) <= 1e-5
    # A float32 of this size is 1e-3 away from the next. So are the sums that lead to it, of D
    # products each, whose roundings are as good as random.
    assert cases.error(logsumexp, exact.logsumexp) <= (D**0.5 * 1e-3 if logit > 0 else 1e-5)


def test_an_infinite_logit_gives_nan(instructions):
    query, key, value = tensors()
    query[..., 0] = 1
    key[0, 0, 1234, 0] = math.inf
    context, _ = native(query, key, value)
    assert context[0, :3].isnan().all()
    assert context[0, 3:].isfinite().all()
    assert context[1].isfinite().all()
