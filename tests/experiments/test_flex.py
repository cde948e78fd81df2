"""FlexAttention, as torch's own reference computes it on a CPU: its arguments are right.

The blocks, the functions of a score, the log-sum-exp and the gradients are those of a GPU. The
kernel that they are compiled into is not: see test_cuda.py.
"""

import itertools

import pytest
import torch
from hypothesis import given
from support.cases import HALF, cases
from support.draws import normal
from support.fake_cuda import flex_on_cpu
from support.tolerances import as_exact_as_torch, interval_masks, large
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.inputs import Scoring, check
from regard_experiments.gpu.flex import _block_mask, _kernel, _mods

# torch's tracing of tensors that are no leaves warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

QUERIES, KEYS = 257, 331


@given(cases(dtypes=[torch.float32, *HALF]))
def test_flex_is_as_exact_as_torch_s_own_kernel(case):
    with flex_on_cpu():
        as_exact_as_torch(case, "flex")


@pytest.mark.parametrize("name", interval_masks(1, 1))
def test_flex_over_the_edges_of_its_blocks(name):
    with flex_on_cpu():
        as_exact_as_torch(large(QUERIES, KEYS, interval_masks(QUERIES, KEYS)[name]), "flex")


def rows_of(mask, queries, keys, lead=(2, 3)):
    return mask.resolve(lead, queries, keys, torch.device("cpu"))


def in_blocks(visible, size):
    """The mask by blocks (b, h, m, n, size·size), and beside it which entries exist."""
    queries, keys = visible.shape[-2:]
    padding = (0, -keys % size, 0, -queries % size)
    tables = (visible, torch.ones_like(visible))
    cut = (torch.nn.functional.pad(t, padding) for t in tables)
    return [
        t.unflatten(-2, (-1, size)).unflatten(-1, (-1, size)).transpose(-3, -2).flatten(-2)
        for t in cut
    ]


def masks_in_blocks():
    index = torch.arange(QUERIES)
    # Rows that see nothing, whose start or stop lies far from what the rows beside them see.
    start, stop = torch.tensor([0, 200, KEYS])[index % 3], torch.tensor([0, 210, KEYS])[index % 3]
    return interval_masks(QUERIES, KEYS) | {
        "fully masked rows": regard.masks.intervals(start, stop)
    }


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("name", masks_in_blocks())
def test_blocks_are_those_that_the_mask_shows(name, size, monkeypatch):
    monkeypatch.setattr(_block_mask, "_BLOCK", size)
    mask, everything = masks_in_blocks()[name], (slice(0, QUERIES), slice(0, KEYS))
    actual = _block_mask.block_mask(rows_of(mask, QUERIES, KEYS), lambda b, h, q, k: k >= 0)
    if name == "dense":  # of which only the interval's part is looked at
        mask = regard.causal()
    seen, exists = in_blocks(rows_of(mask, QUERIES, KEYS).visible(*everything), size)
    full = seen.all(-1) & exists.all(-1) & (name != "dense")
    assert torch.equal(actual.full_kv_num_blocks, full.sum(-1).int())
    assert torch.equal(actual.to_dense().bool(), seen.any(-1))
    assert (size, size) == actual.BLOCK_SIZE
    # What the gradient goes by is the same table turned round.
    turned = actual.q_num_blocks + actual.full_q_num_blocks
    assert torch.equal(turned, seen.any(-1).sum(-2).int())


class Largest(TorchDispatchMode):
    """Notes the most numbers that a tensor held."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


@pytest.mark.parametrize("length", [2**14, 2**17])
def test_blocks_need_no_matrix(length, monkeypatch):
    monkeypatch.setattr(_block_mask, "_TABLE", 2**16)
    ids = torch.arange(length) // 1000
    mask = regard.causal() & regard.documents(ids)
    rows = rows_of(mask, length, length)
    with Largest() as largest:
        actual = _block_mask.block_mask(rows, lambda b, h, q, k: k >= 0)
    blocks = length // actual.BLOCK_SIZE[0]
    assert largest.numel <= max(length, blocks**2 + blocks)  # one spare column, torch's own
    assert blocks**2 <= 2**16


MASKS = {
    "fully masked rows": regard.causal(offset=-3) & regard.window(11),
    "padding": regard.causal()
    & regard.padding(torch.stack([torch.arange(37) >= 5, torch.arange(37) < 30])),
    "everything": regard.Mask(),
}
OPTIONS = {
    "plain": {},
    "all": {
        "softcap": 2.0,
        "alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
        "bias": normal(4, 1, 37),
        "sink": torch.tensor([0.0, 1.0, -torch.inf, 2.0]),
        "scale": -0.5,
    },
}


@pytest.mark.parametrize(
    ("name", "option"),
    [  # each is traced anew, which takes seconds
        pytest.param(*one, marks=[pytest.mark.thorough] * (one != ("padding", "all")))
        for one in itertools.product(MASKS, OPTIONS)
    ],
)
def test_gradients_are_those_of_the_definition(name, option):
    shapes = (2, 4, 29, 8), (2, 2, 37, 8), (2, 2, 37, 5)
    tensors = [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    options, mask = dict(OPTIONS[option]), MASKS[name]
    weight = normal(2, 4, 29, 5, seed=7, dtype=torch.float64)

    def gradients(attend, dtype, **more):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        if "sink" in options:
            options["sink"] = options["sink"].detach().to(dtype).requires_grad_()
            leaves.append(options["sink"])
        context = attend(*leaves[:3], mask=mask, **options, **more)
        return torch.autograd.grad((context * weight).sum(), leaves)

    exact = gradients(lambda *a, **o: regard.explain(*a, **o).context, torch.float64)
    with flex_on_cpu(traced=True):
        actual = gradients(regard.attention, torch.float32, backend="flex")
    for one, other in zip(actual, exact, strict=True):
        assert one.dtype == torch.float32
        # Sums of some dozens of float32 numbers near 1, and torch's own exp2 for exp.
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    if name == "fully masked rows":
        assert not bool(actual[0][:, :, :3].any())


def test_a_bias_and_slopes_get_no_gradient_but_by_another():
    x = torch.randn(2, 4, 5, 8)
    for name, tensor in (("bias", torch.zeros(5, 5)), ("alibi", torch.ones(4))):
        problem = check(x, x, x, Scoring(**{name: tensor.requires_grad_()}))
        with flex_on_cpu():
            with pytest.raises(ValueError, match=f"the gradient of .*{name} is not supported"):
                regard.attention(x, x, x, **{name: tensor}, backend="flex")
            with torch.no_grad():
                assert regard.backends.choose(problem, "flex").name == "flex"


@pytest.mark.thorough
def test_each_kind_is_compiled_by_itself():
    """torch gives up when one piece of code was compiled eight times, here twice."""
    x = normal(1, 2, 40, 16)
    with flex_on_cpu(traced=True), torch._dynamo.config.patch(recompile_limit=2):
        for cap in (1.0, 2.0):
            for length in (40, 30, 20):  # the second compilation is for any length
                part = x[..., :length, :]
                mask = regard.causal() & regard.window(7)
                options = {"mask": mask, "softcap": cap}
                context = regard.attention(part, part, part, **options, backend="flex")
                steps = regard.explain(part, part, part, **options)
                torch.testing.assert_close(context, steps.context)


def test_a_visible_nan_comes_out_where_nothing_is_hidden():
    query, key, value = (normal(1, 2, 5, 16, seed=s) for s in range(3))
    key[0, 1, 3, 2], value[0, 0, 2, 1] = torch.nan, torch.nan
    with flex_on_cpu():
        context, pattern = regard.attention_with_pattern(query, key, value, backend="flex")
    assert torch.equal(context.isnan(), regard.explain(query, key, value).context.isnan())
    assert bool(pattern.logsumexp[0, 1].isnan().all())


def test_numbers_behind_a_mask_are_objected_to():
    x = normal(1, 2, 5, 16)
    x[0, 1, 3, 2] = torch.nan
    with flex_on_cpu(), pytest.raises(ValueError, match=r"NaN, infinity .* its masks let through"):
        regard.attention(x, x, x, mask=regard.causal(), backend="flex")


def test_places_are_looked_up_on_the_axes_that_a_table_has():
    table = normal(1, 3, 1, 5)
    look = _mods._table(table)
    at = [torch.tensor(i) for i in (1, 2, 6, 4)]
    assert look(*at) == table[0, 2, 0, 4]
    assert _mods._table(torch.tensor([[7.0]]))(*at[:2]) == 7


def test_narrow_heads_are_widened_to_what_the_kernel_multiplies(monkeypatch):
    widths = []

    def noted(query, key, value, *rest):
        widths.append([t.shape[-1] for t in (query, key, value)])
        return torch.zeros(1, 2, 5, value.shape[-1]), torch.zeros(1, 2, 5)

    with flex_on_cpu():
        monkeypatch.setattr(_kernel, "_compiled", lambda kind: noted)
        for dim, dim_value in ((3, 5), (17, 3), (16, 24)):
            query, value = torch.ones(1, 2, 5, dim), torch.ones(1, 2, 5, dim_value)
            regard.attention(query, query, value, backend="flex")
    assert widths == [[16, 16, 16], [17, 17, 16], [16, 16, 24]]
