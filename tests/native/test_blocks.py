"""Products of a GGUF's blocks with vectors: every instruction set against float64."""

import pytest
import torch
from support.blocks import drawn_blocks
from support.cpu_paths import SETS

from regard.backends import native
from regard.gpt.blocks import KINDS, Blocks

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")
KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda number: KINDS[number].name)


def drawn(kind, vectors, runs, rows):
    """Inputs whose runs of 32 differ in size, blocks, and a bias."""
    numbers = KINDS[kind].numbers
    inputs = runs * numbers if numbers > 1 else runs * 32 + 7
    draw = torch.Generator().manual_seed(vectors * inputs + rows)
    x = torch.randn(vectors, inputs, generator=draw)
    x *= torch.logspace(-3, 3, inputs)[torch.randperm(inputs, generator=draw).sort().values]
    blocks = drawn_blocks(kind, rows, inputs, draw)
    return x, blocks, torch.randn(rows, generator=draw)


def rounding(x, blocks):
    """By how much the rounding of inputs may change each result, and that of sums in float32."""
    size = blocks.dequantized().double().abs()
    runs = x.double().abs().split(32, dim=1)
    largest = torch.cat([run.amax(1, keepdim=True).expand_as(run) for run in runs], 1)
    in_blocks = KINDS[blocks.parts[0][0]].numbers > 1
    # At most 1/65534 of the largest of 32 inputs, in float32, with one more rounding of its scale.
    inputs = largest / 65534 * (1 + 2**-15) if in_blocks else torch.zeros_like(largest)
    # Of whole numbers the sums of 32 are exact; each is scaled, and up to 40 of them follow.
    return inputs @ size.mT + 50 * 2**-24 * (largest @ size.mT)


@KIND
def test_they_are_the_products_of_what_the_blocks_say(kind, instructions):
    for vectors, runs, rows in [
        (1, 1, 1),
        (1, 3, 37),
        (3, 5, 17),
        (4, 2, 67),
        (7, 1, 131),
        (139, 1, 18),
    ]:
        x, blocks, bias = drawn(kind, vectors, runs, rows)
        exact = x.double() @ blocks.dequantized().double().mT
        close = rounding(x, blocks)
        result = native.multiply_blocks(x, blocks.parts, None)
        assert result.shape == (vectors, rows)
        assert ((result.double() - exact).abs() <= close).all()
        with_bias = native.multiply_blocks(x, blocks.parts, bias)
        close += 2**-24 * (exact + bias).abs()
        assert ((with_bias.double() - exact - bias).abs() <= close).all()


def test_whole_numbers_are_exact(instructions):
    """Where the largest of 32 inputs is 32,767, none is rounded."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randint(-99, 100, (1, 32), generator=draw).float()
    x[0, 5] = 32767
    _, blocks, _ = drawn(8, 1, 1, 53)
    blocks.parts[0][1][:, :2] = torch.tensor([2.0**-7]).half().view(torch.uint8)
    expected = x @ blocks.dequantized().mT
    assert torch.equal(native.multiply_blocks(x, blocks.parts, None), expected)


def test_the_parts_of_a_matrix_may_be_of_any_kinds(threads, instructions):
    draw = torch.Generator().manual_seed(2)
    kinds = [12, 2, 0, 3, 14, 8, 1, 30]
    parts = [drawn_blocks(kind, 13 + kind, 512, draw) for kind in kinds]
    mixed = Blocks.joined(parts)
    assert [kind for kind, _ in mixed.parts] == kinds
    x = torch.randn(9, 512, generator=draw)
    bias = torch.randn(mixed.shape[0], generator=draw)
    threads(3)
    apart = torch.cat([native.multiply_blocks(x, part.parts, None) for part in parts], 1)
    assert torch.equal(native.multiply_blocks(x, mixed.parts, bias), apart + bias)


@KIND
def test_products_are_bitwise_independent_of_threads_and_other_vectors(kind, threads, instructions):
    x, blocks, bias = drawn(kind, 19, 3, 131)
    threads(1)
    whole = native.multiply_blocks(x, blocks.parts, bias)
    threads(3)
    assert torch.equal(native.multiply_blocks(x, blocks.parts, bias), whole)
    for some in (slice(0, 1), slice(7, 8), slice(1, 3), slice(2, 7), slice(4, 17)):
        assert torch.equal(native.multiply_blocks(x[some], blocks.parts, bias), whole[some])


@KIND
@pytest.mark.parametrize("number", [torch.inf, torch.nan])
def test_what_is_not_finite_stays_in_its_row_and_vector(kind, number, instructions):
    x, blocks, _ = drawn(kind, 5, 2, 23)
    finite = native.multiply_blocks(x, blocks.parts, None)
    x[1, 3] = number
    ((_, rows),) = blocks.parts
    form, last = KINDS[kind], rows[-1]
    place = len(last) - (2 if form.name == "Q6_K" else form.size)  # of a number, or a scale
    dtype = {"F32": torch.float32, "BF16": torch.bfloat16}.get(form.name, torch.float16)
    last[place : place + dtype.itemsize] = torch.tensor([number], dtype=dtype).view(torch.uint8)
    result = native.multiply_blocks(x, blocks.parts, None)
    others = torch.arange(5) != 1
    assert not result[1].isfinite().any()
    assert not result[:, -1].isfinite().any()
    assert torch.equal(result[others, :-1], finite[others, :-1])


def test_inputs_near_zero_are_not_lost_to_overflow(instructions):
    x, blocks, _ = drawn(3, 3, 2, 11)
    x[0], x[1] = 0, x[1] / x[1].abs().max() * 2.0**-90
    close = rounding(x, blocks)
    exact = x.double() @ blocks.dequantized().double().mT
    result = native.multiply_blocks(x, blocks.parts, None)
    assert not result[0].any()
    assert ((result.double() - exact).abs() <= close).all()


def test_unsupported_arguments():
    x, bias = torch.randn(32, 64), torch.randn(5)
    assert native.supports_blocks(x, (5, 64), bias)
    assert native.supports_blocks(x[0], (5, 64), None)
    assert native.supports_blocks(torch.randn(333, 64), (5, 64), bias)
    assert not native.supports_blocks(x[:0], (5, 64), bias)
    assert not native.supports_blocks(x.bfloat16(), (5, 64), None)
    assert not native.supports_blocks(x, (5, 32), None)
    assert not native.supports_blocks(x[:, ::2], (5, 32), None)
    assert not native.supports_blocks(x, (5, 64), bias.double())
    assert not native.supports_blocks(x, (5, 64), bias[:1])
    assert not native.supports_blocks(x, (5, 64), torch.randn(10)[::2])
