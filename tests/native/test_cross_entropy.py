"""The cross-entropy of rows of logits: every instruction set against float64."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import HALF
from support.cpu_paths import SETS

from regard.backends import native

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

VOCABULARIES = [1, 3, 16, 67, 1009]  # about the lanes of a vector


def drawn(dtype, vocabulary, rows=53):
    draw = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(rows, vocabulary, generator=draw)).to(dtype)
    targets = torch.randint(vocabulary, (rows,), generator=draw)
    targets[::7] = -100
    return logits, targets, torch.randn(rows, generator=draw)


def losses_and_gradient(logits, targets, weights, *, in_place=True):
    losses = torch.empty(len(logits))
    gradient = logits.clone() if in_place else torch.empty_like(logits)
    native.compute_cross_entropy(
        gradient if in_place else logits, targets, losses, weights=weights, gradient=gradient
    )
    return losses, gradient


def in_float64(logits, targets, weights):
    logits = logits.double().requires_grad_()
    losses = F.cross_entropy(logits, targets, reduction="none")
    return losses.detach(), *torch.autograd.grad(losses @ weights.double(), logits)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_losses_and_gradient(dtype, vocabulary, instructions):
    logits, targets, weights = drawn(dtype, vocabulary)
    losses, gradient = losses_and_gradient(logits, targets, weights)
    exact = in_float64(logits, targets, weights)
    # Logits of up to some 16 are differences from the highest, which round by 32 · 2⁻²⁴, as do
    # their exponentials relatively; a sum of a thousand adds a few steps. Weights reach 3. Then the
    # gradient is rounded to the dtype, float16's smallest to steps of 2⁻²⁴.
    torch.testing.assert_close(losses.double(), exact[0], rtol=0, atol=64 * 2**-24)
    close = {"rtol": torch.finfo(dtype).eps, "atol": 3 * 64 * 2**-24}
    torch.testing.assert_close(gradient.double(), exact[1], **close)
    assert not losses[::7].any()
    assert not gradient[::7].any()


def test_the_gradient_is_written_to_a_separate_buffer_or_not_at_all(instructions):
    logits, targets, weights = drawn(torch.bfloat16, 67)
    kept = logits.clone()
    losses, gradient = losses_and_gradient(logits, targets, weights)
    for mine, other in zip(
        losses_and_gradient(logits, targets, weights, in_place=False),
        (losses, gradient),
        strict=True,
    ):
        assert torch.equal(mine, other)
    alone = torch.empty(len(logits))
    native.compute_cross_entropy(logits, targets, alone, weights=weights, gradient=None)
    assert torch.equal(alone, losses)
    assert torch.equal(logits, kept)


def test_logits_that_are_infinite_huge_or_nan(instructions):
    infinity = float("inf")
    logits = torch.randn(6, 67, generator=torch.Generator().manual_seed(1))
    logits[0, 5:] = -infinity  # hidden, as a mask does it
    logits[1] *= 1e37  # whose exponentials overflow
    logits[2, 60] = float("nan")
    logits[3, 2] = infinity
    logits[4] = -infinity
    logits[5, 3] = -infinity  # the target's
    targets = torch.tensor([2, int(logits[1].argmax()), 2, 2, 2, 3])
    losses, gradient = losses_and_gradient(logits, targets, torch.ones(6))
    exact, exact_gradient = in_float64(logits, targets, torch.ones(6))
    torch.testing.assert_close(losses.double(), exact, equal_nan=True, rtol=1e-5, atol=1e-5)
    close = {"rtol": 1e-5, "atol": 1e-5}  # as above
    torch.testing.assert_close(gradient[:2].double(), exact_gradient[:2], **close)
    assert losses[5] == infinity
    assert gradient[2:5].isnan().any(-1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_bitwise_independent_of_threads(dtype, threads, instructions):
    operands = drawn(dtype, 1009, rows=331)
    kept = []
    for count in (1, 3):
        threads(count)
        kept.append(losses_and_gradient(*operands))
    assert all(map(torch.equal, *kept))
