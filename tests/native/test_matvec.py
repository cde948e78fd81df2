"""Products of a matrix with few vectors: every instruction set against float64, to the last bit."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import HALF
from support.cpu_paths import SETS

from regard.backends import native

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

# About the lanes of a vector, the rows of a task, which are 64, and those that are read together;
# the last are whole blocks of inputs, which a set with many lanes reads in a loop of their own.
SIZES = [(1, 1), (5, 1), (3, 67), (16, 16), (17, 131), (64, 63), (127, 129), (331, 65), (809, 53)]
SIZES += [(768, 67)]
TILES = [(31, 15), (32, 17), (33, 47)]  # about those of AMX: 16 rows of 32 inputs


def drawn(vectors, inputs, outputs, dtype):
    draw = torch.Generator().manual_seed(vectors * inputs + outputs)
    shapes = ((vectors, inputs), (outputs, inputs), (outputs,))
    return tuple(torch.randn(shape, generator=draw).to(dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_it_is_the_product(dtype, instructions):
    for inputs, outputs in SIZES + TILES:
        for vectors in (1, 3, 4, 6, 8, 16, 17, 19, 32):
            operands = drawn(vectors, inputs, outputs, dtype)
            with_bias, without_bias = native.matvec(*operands), native.matvec(*operands[:2], None)
            exact = F.linear(*(t.double() for t in operands))
            # Up to 809 products near 1, added up in float32, 192 of them in fours where a set has
            # no more lanes and then the sums of 192: some 55 roundings of a sum near 30; with AMX
            # 16 pairs and then 26 such sums. Then it is rounded to the dtype.
            close = {"rtol": 1.1 * torch.finfo(dtype).eps, "atol": 55 * 30 * 2**-24}
            torch.testing.assert_close(with_bias.double(), exact, **close)
            torch.testing.assert_close(without_bias.double(), exact - operands[2].double(), **close)


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_rows_of_int8_are_multiplied_by_their_scales(dtype, instructions):
    for inputs, outputs in SIZES:
        for vectors in (1, 3, 4, 6, 8):
            x, _, bias = drawn(vectors, inputs, outputs, dtype)
            weight, scale = int8_drawn(inputs, outputs)
            exact = F.linear(x.double(), weight * scale.double()[:, None], bias.double())
            # As above: the products are near 1, and the scale adds one rounding.
            close = {"rtol": 1.1 * torch.finfo(dtype).eps, "atol": 55 * 30 * 2**-24}
            result = native.matvec(x, weight, bias, scale)
            assert result.dtype == dtype
            torch.testing.assert_close(result.double(), exact, **close)


def int8_drawn(inputs, outputs):
    draw = torch.Generator().manual_seed(inputs + outputs)
    weight = torch.randint(-127, 128, (outputs, inputs), generator=draw, dtype=torch.int8)
    return weight, (0.5 + torch.rand(outputs, generator=draw)) / 64


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("inputs", [768, 809, 4211])  # 4,211: two exceed a cache
def test_products_are_bitwise_independent_of_threads_and_other_vectors(
    inputs, dtype, threads, instructions
):
    x, weight, bias = drawn(19, inputs, 331, dtype)
    for matrix, scale in ((weight, None), int8_drawn(inputs, 331)):
        threads(1)
        whole = native.matvec(x, matrix, bias, scale)
        threads(3)
        assert torch.equal(native.matvec(x, matrix, bias, scale), whole)
        for some in (slice(0, 1), slice(7, 8), slice(1, 3), slice(2, 7), slice(4, 17)):
            assert torch.equal(native.matvec(x[some], matrix, bias, scale), whole[some])


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_row_and_vector(number, dtype, instructions):
    """Not even where rows, inputs or vectors fill no whole tile or register."""
    for inputs, outputs in SIZES[1:] + TILES:
        for vectors in (3, 19):
            x, weight, _ = drawn(vectors, inputs, outputs, dtype)
            finite = native.matvec(x, weight, None)
            weight[-1, -1] = x[1, 0] = number
            result = native.matvec(x, weight, None)
            others = torch.arange(vectors) != 1
            assert not result[1].isfinite().any()
            assert not result[:, -1].isfinite().any()
            assert torch.equal(result[others, :-1], finite[others, :-1])


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
def test_leading_dimensions_are_kept(shape):
    x, weight = torch.randn(shape), torch.randn(5, 3)
    assert native.supports_matvec(x, weight, None)
    assert native.matvec(x, weight, None).shape == (*shape[:-1], 5)


def test_unsupported_arguments():
    x, weight, bias = drawn(32, 7, 5, torch.float32)
    assert native.supports_matvec(x, weight, bias)
    assert not native.supports_matvec(torch.randn(33, 7), weight, bias)
    assert not native.supports_matvec(x[:0], weight, bias)
    assert not native.supports_matvec(x[:, :0], weight[:, :0], bias)
    assert not native.supports_matvec(x.double(), weight.double(), bias.double())
    assert not native.supports_matvec(x.bfloat16(), weight, bias)
    assert not native.supports_matvec(x, weight, bias.bfloat16())
    assert not native.supports_matvec(torch.randn(7, 8).mT, weight, bias)
    assert not native.supports_matvec(x, torch.randn(7, 5).mT, bias)
    assert not native.supports_matvec(x, weight, torch.randn(10)[::2])
    assert not native.supports_matvec(torch.randn(2, 14), weight, bias)  # as many as of 4 vectors
    assert not native.supports_matvec(torch.tensor(1.0), weight, bias)
    assert not native.supports_matvec(x, weight[0], None)
    assert not native.supports_matvec(x, weight, bias[:1])
    int8, scale = int8_drawn(7, 5)
    assert native.supports_matvec(x, int8, bias, scale)
    assert not native.supports_matvec(x, int8, bias)
    assert not native.supports_matvec(x, weight, bias, scale)
    assert not native.supports_matvec(x, int8, bias, scale.double())
    assert not native.supports_matvec(x, int8, bias, scale[:4])
