"""The backward pass: gradients of the definition, on every set of instructions, to the last bit."""

import math

import pytest
import torch
from hypothesis import given
from support import cases
from support.cpu_paths import SETS
from support.draws import normal

import regard

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of the largest gradient, in roundings of the dtype. In float32 sums of a thousand products round
# some times; in the half precisions weights, score gradients and results are rounded once each.
ROUNDINGS = {torch.float32: 128, torch.bfloat16: 4, torch.float16: 4}
# Unequal primes; panels of half the keys and blocks of 192 are crossed, and tasks of 64 rows.
B, H, G, L, S, D, DV = 2, 6, 2, 149, 577, 37, 19


def tensors(dtype=torch.float32, batch=B, heads=H, groups=G, queries=L, keys=S):
    return {
        "query": normal(batch, heads, queries, D, seed=1, dtype=dtype),
        "key": normal(batch, groups, keys, D, seed=2, dtype=dtype),
        "value": normal(batch, groups, keys, DV, seed=3, dtype=dtype),
    }


def differentiate(call, arguments, weight, options):
    """Gradients of Σ weight · context with respect to all tensors of the arguments."""
    leaves = {name: t.detach().requires_grad_() for name, t in arguments.items()}
    generator = torch.Generator().manual_seed(5)
    context = call(**leaves, **options, generator=generator)
    gradients = torch.autograd.grad(context, tuple(leaves.values()), weight.to(context.dtype))
    return dict(zip(leaves, gradients, strict=True))


def native(arguments, weight, **options):
    def call(**arguments):
        return regard.attention(**arguments, backend="native")

    return differentiate(call, arguments, weight, options)


def exact(arguments, weight, **options):
    def call(**arguments):
        return regard.explain(**arguments).context

    doubled = {name: t.double() for name, t in arguments.items()}
    return differentiate(call, doubled, weight, options)


def agree(gradients, wanted, dtype, floor=0.0):
    for name, gradient in gradients.items():
        assert gradient.shape == wanted[name].shape
        largest = float(wanted[name].abs().max()) if gradient.numel() else 0.0
        bound = ROUNDINGS[dtype] * torch.finfo(dtype).eps * largest + floor
        error = cases.error(gradient, wanted[name])
        assert error <= bound, f"{name}: error {error:.3g}, but at most {bound:.3g}"


POSITIONS = torch.arange(S)
MASKS = {
    "all": regard.Mask(),
    "causal": regard.causal(),
    "from the corner": regard.causal(offset=0),
    "fully masked rows": regard.causal(offset=-50),
    "window": regard.causal() & regard.window(101),
    "documents": regard.documents(POSITIONS // 97) & regard.causal(),
    "padding": regard.padding(torch.stack([POSITIONS >= 200, POSITIONS < 301])) & regard.causal(),
    "prefix": regard.masks.prefix(311),
    "dense": regard.dense(normal(L, S, seed=9) > -0.5) & regard.causal(),
}
OPTIONS = {
    "scale": {"scale": -0.3},
    "no scale": {"scale": 0.0},
    "softcap": {"softcap": 1.5, "scale": 1.0},
    "bias": {"bias": normal(H, 1, S, seed=4)},
    "bias that hides": {"bias": normal(L, S, seed=4).masked_fill(POSITIONS % 5 == 0, -math.inf)},
    "alibi": {"alibi": 0.5 ** torch.arange(1, H + 1)},
    "sink": {"sink": normal(H, seed=6)},
    "dropout": {"dropout": 0.3},
    "dropout of all": {"dropout": 1.0},
    "everything": {
        "softcap": 2.0,
        "bias": normal(B, 1, L, S, seed=4),
        "alibi": 0.1 ** torch.arange(1, H + 1),
        "sink": normal(H, seed=6),
        "dropout": 0.6,
    },
}


def check(dtype, mask, options):
    arguments = tensors(dtype)
    arguments |= {n: options[n] for n in ("bias", "alibi", "sink") if n in options}
    rest = {n: x for n, x in options.items() if n not in arguments} | {"mask": mask}
    weight = normal(B, H, L, DV, seed=7, dtype=dtype)
    agree(native(arguments, weight, **rest), exact(arguments, weight, **rest), dtype)


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask(name, dtype, instructions):
    check(dtype, MASKS[name], {})


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name, dtype, instructions):
    check(dtype, MASKS["window"], OPTIONS[name])


@given(cases.cases(dtypes=DTYPES))
def test_masks_and_options_crossed(case):
    options = dict(case.options)
    arguments = {"query": case.query, "key": case.key, "value": case.value}
    arguments |= {n: options.pop(n) for n in ("bias", "alibi", "sink") if n in options}
    weight = normal(*case.query.shape[:-1], case.value.shape[-1], dtype=case.dtype)
    # A weight's gradient is a value times the context's; it suffers in proportion to its score, and
    # meets a query or key on its way on.
    query, key, value, of_context = (
        float(t.abs().max()) for t in (case.query, case.key, case.value, weight)
    )
    rounding = case.rounding + torch.finfo(case.dtype).eps
    floor = 4 * rounding * value * of_context * max(1, query, key)
    agree(
        native(arguments, weight, **options), exact(arguments, weight, **options), case.dtype, floor
    )


# Of 4,096 keys and more there are more than two panels.
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (64, 15), (65, 16), (17, 257), (63, 1023), (67, 4099)]
)
def test_sizes_around_those_of_tasks_blocks_and_panels(queries, keys, instructions):
    for dtype in (torch.float32, torch.bfloat16):
        arguments = tensors(dtype, 1, 2, 1, queries, keys)
        weight = normal(1, 2, queries, DV, dtype=dtype)
        options = {"mask": regard.causal()}
        # Where a row sees one key alone, its score has no gradient; what is left is rounding.
        floor = 16 * torch.finfo(dtype).eps
        actual, wanted = native(arguments, weight, **options), exact(arguments, weight, **options)
        agree(actual, wanted, dtype, floor)


@pytest.mark.parametrize(("queries", "keys"), [(0, 7), (5, 0), (0, 0)])
def test_rows_without_visible_keys_have_gradient_zero(queries, keys):
    arguments = tensors(queries=queries, keys=keys)
    for gradient in native(arguments, normal(B, H, queries, DV)).values():
        assert not gradient.any()


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("groups", "queries", "keys"), [(1, 331, 1301), (6, 331, 1301), (6, 83, 4099)]
)
def test_results_do_not_depend_on_the_number_of_threads(
    groups, queries, keys, dtype, threads, instructions
):
    arguments = tensors(dtype, 1, 6, groups, queries, keys)
    arguments |= {"sink": normal(6), "alibi": normal(6)}
    weight = normal(1, 6, queries, DV, dtype=dtype)
    threads(1)
    alone = native(arguments, weight, mask=MASKS["causal"])
    for count in (2, 3):
        threads(count)
        for _ in range(3):
            together = native(arguments, weight, mask=MASKS["causal"])
            assert all(torch.equal(alone[name], together[name]) for name in alone)


def test_results_do_not_depend_on_the_rest_of_the_batch():
    arguments, weight = tensors(), normal(B, H, L, DV)
    together = native(arguments, weight, mask=MASKS["padding"])
    for entry in range(B):
        mask = regard.padding([POSITIONS >= 200, POSITIONS < 301][entry]) & regard.causal()
        own = {name: t[entry : entry + 1] for name, t in arguments.items()}
        alone = native(own, weight[entry : entry + 1], mask=mask)
        assert all(torch.equal(alone[name][0], together[name][entry]) for name in alone)


SEEN, BACK = 41, 1009  # keys, and how far the first query is from the first of them


@pytest.mark.each_once
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"sink": normal(H, seed=6)}, {"dropout": 0.3}])
def test_the_gradient_of_a_slope_with_distant_keys(dtype, options, instructions):
    arguments = tensors(dtype, keys=BACK + L) | {"alibi": 0.002 ** torch.arange(1, H + 1)}
    arguments |= {name: x for name, x in options.items() if name == "sink"}
    rest = {name: x for name, x in options.items() if name not in arguments}
    rest["mask"] = regard.causal() & regard.masks.hide(slice(SEEN, None))
    weight = normal(B, H, L, DV, seed=7, dtype=dtype)
    gradient = native(arguments, weight, **rest)["alibi"]
    wanted = exact(arguments, weight, **rest)["alibi"]
    # Sums of about 1 times the distance are rounded in float32, in each row on its own; what the
    # rounding of a context adds would come times the distance too, in bfloat16 65,536 times that.
    assert cases.error(gradient, wanted) <= 8 * 2**-23 * (BACK + L) * (B * L) ** 0.5


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "alibi", "sink"])
def test_a_gradient_does_not_depend_on_which_others_are_wanted(name):
    arguments = tensors() | {"bias": normal(L, S), "alibi": normal(H), "sink": normal(H)}
    weight = normal(B, H, L, DV)
    wanted = native(arguments, weight, mask=MASKS["window"])[name]
    others = {other: t for other, t in arguments.items() if other != name}
    alone = native({name: arguments[name]}, weight, mask=MASKS["window"], **others)[name]
    assert torch.equal(alone, wanted)


@pytest.mark.each_once
@pytest.mark.parametrize("stray", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("option", ["scale", "softcap", "bias", "sink", "dropout"])
def test_hidden_values_do_not_reach_gradients(option, dtype, stray, instructions):
    hidden = torch.tensor([0, 3, S - 1])
    fully_masked = torch.arange(40)
    mask = regard.causal(offset=-40 + 150) & regard.padding((POSITIONS >= 150) & (POSITIONS < 570))
    clean, weight = tensors(dtype), normal(B, H, L, DV, dtype=dtype)
    dirty = {name: t.clone() for name, t in clean.items()}
    dirty["key"][:, :, hidden] = stray
    dirty["value"][:, :, hidden + torch.tensor([1, 0, -1])] = stray
    dirty["query"][:, :, fully_masked] = stray
    spoilt = weight.clone()
    spoilt[:, :, fully_masked] = stray
    options = {"mask": mask, **OPTIONS[option]}
    actual, wanted = native(dirty, spoilt, **options), exact(clean, weight, **options)
    agree(actual, wanted, dtype)
    assert not actual["query"][:, :, fully_masked].any()
    for name in ("key", "value"):
        assert not actual[name][:, :, :150].any()
        assert not actual[name][:, :, 570:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["query", "key", "value", "weight"])
def test_nan_propagates_only_to_gradients_of_rows_and_keys_that_see_it(name, dtype, instructions):
    """A NaN at position 100 of 200 spoils rows from there on; or, in a row, keys up to there."""
    arguments, weight = tensors(dtype, 1, 2, 2, 200, 200), normal(1, 2, 200, DV, dtype=dtype)
    options = {"mask": regard.causal()}
    wanted = exact(arguments, weight, **options)
    (arguments | {"weight": weight})[name][:, :, 100] = math.nan
    actual = native(arguments, weight, **options)
    if name in {"query", "weight"}:  # it reaches keys that the row sees, and no other row
        untouched = {"key": slice(101, None), "value": slice(101, None)}
        rows = torch.arange(200) != 100
        assert cases.error(actual["query"][:, :, rows], wanted["query"][:, :, rows]) < 0.1
    else:  # no row before sees it
        untouched = {"query": slice(0, 100)}
        assert actual["query"][:, :, 100:].isnan().any()
    for other, where in untouched.items():
        part = {other: actual[other][:, :, where]}
        agree(part, {other: wanted[other][:, :, where]}, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_do_not_depend_on_scratch_memory_of_earlier_calls(dtype, threads):
    threads(1)  # one memory to work in
    spoilt = {name: torch.full_like(t, math.nan) for name, t in tensors(dtype).items()}
    left = native(spoilt, normal(B, H, L, DV, dtype=dtype))
    assert all(gradient.isnan().all() for gradient in left.values())
    arguments, weight = tensors(dtype, keys=7), normal(B, H, L, DV, dtype=dtype)
    options = {"mask": MASKS["from the corner"]}
    agree(native(arguments, weight, **options), exact(arguments, weight, **options), dtype)
