"""Promised bitwise equality does not depend on the rounding of a library's matrix product.

The products are replaced by ones that round by their shapes. A row's weights must be the same
whatever other rows, heads, keys and batch entries are read with them, and by whatever readouts.
"""

import pytest
import torch
from record.models.classes import CASES
from support.cpu_paths import EACH_SET, SETS, forced, streamed
from support.patterns import afresh, flat, inputs, masks
from support.rounding import RoundedByShape

import regard
from regard.pattern.readouts import (
    Distance,
    Entropy,
    Image,
    Mass,
    Max,
    Offsets,
    Readout,
    Received,
    TopK,
)  # fmt: skip

QUERIES, KEYS = 67, 131
READOUTS = (TopK(5), Max(), Entropy(), Distance(), Mass([3, 50]), Received(), Offsets(9))
READOUTS += (Image(13, 11), Image(1000, 1000))
# In blocks they take longest: of those a small case stays, `test_a_small_pattern_in_blocks`.
STREAMED = ["streamed", "float64"]
IN_BLOCKS = ["streamed in blocks", "float64 in blocks"]
STREAMED += [pytest.param(name, marks=pytest.mark.thorough) for name in IN_BLOCKS]
ROWS = ([0], [66], [3, 5, 40], [*range(1, 67)])


class Own(Readout):
    """A readout of one's own, which no kernel knows: the weights themselves."""

    def begin(self, sizes):
        return sizes.zeros(sizes.queries, sizes.keys)

    def add(self, state, block):
        state[block.heads, block.rows, block.columns] += block.weights

    def finish(self, state, sizes):
        return sizes.restore(state)


@pytest.fixture(autouse=True)
def products():
    """Replace the products, and see to it that they are seen at all."""
    with RoundedByShape() as mode:
        one = torch.ones(1, 1, 3, 5)
        assert not torch.equal(one @ one.mT, torch.full((1, 1, 3, 3), 5.0))
        yield mode


@pytest.fixture(params=[*EACH_SET, *STREAMED])
def dtype(request):
    """By each set of instructions, or streamed without them: the dtype to compute in."""
    name = request.param
    if name in SETS:
        with forced(name):
            yield torch.float32
    else:
        with streamed(*([2**11] if name.endswith("blocks") else [])):
            yield torch.float64 if name.startswith("float64") else torch.float32


def of_rows(pattern):
    """What each row has of its own."""
    top, *numbers = pattern.read(*READOUTS[:5])
    return [pattern.logsumexp, pattern.dense(), *flat([top]), *numbers]


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["causal", "padding", "bias", "alibi"])
def test_rows(dtype, name):
    pattern = regard.Pattern(*inputs(QUERIES, KEYS, dtype), **masks(QUERIES, KEYS)[name])
    whole = of_rows(pattern)
    for rows in ROWS:
        for one, other in zip(of_rows(afresh(pattern, rows)), whole, strict=True):
            assert torch.equal(one, other[:, :, rows]), rows
        assert torch.equal(pattern[..., rows, :], whole[1][:, :, rows])


@pytest.mark.parametrize("name", [pytest.param("causal", marks=pytest.mark.thorough), "padding"])
def test_a_small_pattern_in_blocks(name):
    with streamed(2**9):
        pattern = regard.Pattern(*inputs(11, 53, torch.float32), **masks(11, 53)[name])
        whole, together = of_rows(pattern), flat(pattern.read(*READOUTS[:4]))
        for rows in ([0], [10], [3, 5]):
            for one, other in zip(of_rows(afresh(pattern, rows)), whole, strict=True):
                assert torch.equal(one, other[:, :, rows]), rows
        alone = [afresh(pattern).read(readout)[0] for readout in READOUTS[:4]]
        for one, other in zip(flat(alone), together, strict=True):
            assert torch.equal(one, other)


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["causal", "documents", "early"])
def test_heads_and_batch_entries(dtype, name):
    pattern = regard.Pattern(*inputs(QUERIES, KEYS, dtype), **masks(QUERIES, KEYS)[name])
    coefficients = torch.randn(3, QUERIES, generator=torch.Generator().manual_seed(7)).to(dtype)

    def everything(pattern):
        results = [pattern.logsumexp, pattern.dense(), coefficients @ pattern]
        return [*results, *flat(pattern.read(*READOUTS))]

    whole = [result.flatten(0, 1) for result in everything(pattern)]
    for heads in ([0], [11], [7, 2], [1, 3, 4, 5, 8]):
        part = everything(afresh(pattern, heads=torch.tensor(heads)))
        for one, other in zip(part, whole, strict=True):
            assert torch.equal(one, other[heads]), heads


@pytest.mark.each_once
@pytest.mark.parametrize("name", ["causal", "padding", "bias"])
def test_keys_and_what_else_is_read(dtype, name):
    pattern = regard.Pattern(*inputs(QUERIES, KEYS, dtype), **masks(QUERIES, KEYS)[name])
    whole, together = pattern.dense(), flat(pattern.read(*READOUTS))
    for keys in (0, slice(5, 100), [130, 3, 77]):
        assert torch.equal(pattern[..., keys], whole[..., keys])
        assert torch.equal(pattern[..., 20:50, keys], whole[..., 20:50, :][..., keys])
    alone = [afresh(pattern).read(readout)[0] for readout in READOUTS]
    for one, other in zip(flat(alone), together, strict=True):
        assert torch.equal(one, other)


def test_readouts_of_ones_own(dtype):
    """Streamed where the rest is not, they see weights that are a row's own all the same."""
    pattern = regard.Pattern(*inputs(QUERIES, KEYS, dtype), mask=regard.causal())
    (whole,) = pattern.read(Own())
    for rows in ROWS:
        assert torch.equal(afresh(pattern, rows).read(Own())[0], whole[:, :, rows])


@pytest.mark.parametrize("lengths", [(1, 70), (3, 701), (67, 131)], ids=str)
@pytest.mark.parametrize("name", ["window", "padding", "dense", "bias"])
def test_attention_by_the_kernels(instructions, lengths, name):
    """A batch entry's context and gradients are its own."""
    whole = computed(*inputs(*lengths), masks(*lengths)[name])
    for entry in (slice(0, 1), slice(1, 2)):
        query, key = (t[entry] for t in inputs(*lengths))
        alone = computed(query, key, masks(*lengths, entry)[name])
        for one, other in zip(alone, whole, strict=True):
            assert torch.equal(one, other[entry])


def computed(query, key, options):
    tensors = [t.clone().requires_grad_() for t in (query, key)]
    context, pattern = regard.attention_with_pattern(
        *tensors, tensors[1].flip(-1), **options, backend="native"
    )
    return [context.detach(), pattern.logsumexp, *torch.autograd.grad(context.sum(), tensors)]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_a_recording_of_some_rows_and_heads(instructions, name):
    model = CASES[name].build("eager")
    ids = torch.randint(3, 101, (2, 17), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        with regard.record(model) as everything:
            model(ids)
        with regard.record(model, rows=[-1, 4], heads=[1], layers=1) as recording:
            model(ids)
        (layer,) = recording.layers
        expected = everything[1].dense()[:, 1:2, [4, 16]]
        assert torch.equal(layer.pattern.dense(), expected)
