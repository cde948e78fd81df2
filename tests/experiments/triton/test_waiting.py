"""Readouts on a GPU, mimicked, are taken by the kernels, and nothing waits for a number of them."""

import pytest
import torch
from support import fake_gpu
from support.fake_gpu import DEVICE
from support.patterns import flat

import regard
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Lag,
    Mass,
    Max,
    MaxScore,
    Offsets,
    Received,
    Spans,
    TopK,
)
from regard_experiments.gpu import triton

pytest.importorskip("triton")
from support.triton_device import kernels_on_fake_gpu

LENGTH = 23
INDEX = torch.arange(LENGTH)
APART = {
    "read_block_maxima": Blocks(5, 7, "max"),
    "read_diagonals": Offsets(5),
    "read_span_sums": Spans([0, 0, 1, 1, 1]),
}
TOGETHER = (
    *(TopK(3), Entropy(), Distance(), Max(), MaxScore(), Mass(slice(0, 3)), Mass([0, 5]), Lag(1)),
    *(Received(), Received("max"), Received("mean"), Image(7, 5), Blocks(4, 4)),
)
MASKS = {
    "causal": regard.causal(),
    "window": regard.causal() & regard.window(5),
    "documents": regard.causal() & regard.documents(INDEX // 7),
    "padding": regard.causal() & regard.padding(torch.stack([INDEX >= 3, INDEX >= 0])),
    "dense": regard.dense(torch.eye(LENGTH).bool() | (INDEX < 2)),
}


def tensors(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, LENGTH, 16, generator=generator) * scale
    return query, *torch.randn(2, 2, 2, LENGTH, 16, generator=generator).unbind()


@pytest.mark.parametrize(
    "name",  # a second or more each; the one that has every readout takes ten times as long
    [
        pytest.param(name, marks=[] if name in {"window", "padding"} else pytest.mark.thorough)
        for name in MASKS
    ],
)
def test_attention_and_its_readouts_wait_for_nothing(name):
    masks, given = {"mask": MASKS[name]}, tensors()
    readouts = [*TOGETHER, *APART.values()] if name == "causal" else [Received(), Entropy()]
    expected, readings = regard.attention(*given, read=readouts, **masks)
    with kernels_on_fake_gpu() as launched:
        there = [tensor.to(DEVICE) for tensor in given]
        regard.attention(*there, read=readouts, **masks)  # first uses check the kernels
        launched.clear()
        with fake_gpu.waits() as found:
            context, results = regard.attention(*there, read=readouts, **masks)
        assert found == []
        kernels = {"read_rows", "read_logsumexp", *(APART if name == "causal" else ())}
        assert kernels <= set(launched)
        for one, other in zip(flat((context, *results)), flat((expected, *readings)), strict=True):
            # Sums of up to 23 weights near 1 of either kernel.
            torch.testing.assert_close(one.cpu().double(), other.double(), rtol=1e-5, atol=2e-5)


def test_what_keys_receive_alone_and_a_divergence_wait_for_nothing():
    query, key, _ = tensors()
    one, other = (regard.Pattern(query, k, mask=regard.causal()) for k in (key, key.flip(-2)))
    with kernels_on_fake_gpu() as launched:
        there = [pattern.to(DEVICE) for pattern in (one, other)]
        for _ in range(3):  # each set of readouts is checked when it is first read
            launched.clear()
            with fake_gpu.waits() as found:
                received, far = there[0].received(), there[0].divergence(there[1])
        assert found == []
        assert launched == ["read_columns", "read_divergence"]
        torch.testing.assert_close(received.cpu(), one.received(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(far.cpu(), one.divergence(other), rtol=1e-5, atol=1e-5)


def test_coarse_log_sum_exps_of_a_library_are_replaced_and_the_others_kept():
    query, key, _ = tensors(scale=40.0)
    query[:, :, ::2] /= 40
    exact = regard.Pattern(query, key, mask=regard.causal()).logsumexp
    other = exact + 0.25
    coarse = other.abs() > 64
    assert 0 < coarse.float().mean() < 1
    with kernels_on_fake_gpu() as launched:
        problem = regard.Pattern(query.to(DEVICE), key.to(DEVICE), mask=regard.causal()).problem
        given = other.flatten(0, 1).to(DEVICE)
        for _ in range(2):
            launched.clear()
            with fake_gpu.waits() as found:
                result = regard.Pattern.of(problem, given, by_library=True).logsumexp
        assert found == []
        assert launched == ["read_logsumexp"]
        expected = exact.where(coarse, other)
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-6, atol=1e-5)
        assert triton.refine(problem, given, 1e9).cpu().equal(given.cpu())
