"""GELU, and a residual stream with its norm: every instruction set against float64."""

import pytest
import torch
import torch.nn.functional as F
from support.cases import HALF
from support.cpu_paths import SETS
from torch.autograd import forward_ad

import regard
from regard.backends import native

pytestmark = pytest.mark.skipif(not SETS, reason="needs the native library")

DTYPES = [torch.float32, *HALF]
WIDTHS = [1, 3, 67, 128]  # about the lanes of a vector


def gelu_and_gradient(gelu, x, gradient):
    x = x.detach().requires_grad_()
    result = gelu(x)
    return result.detach(), *torch.autograd.grad(result, x, gradient)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_and_its_gradient(dtype, instructions):
    draw = torch.Generator().manual_seed(0)
    x, gradient = (3 * torch.randn(2, 3, 2731, generator=draw)).to(dtype).unbind()
    exact = gelu_and_gradient(
        lambda x: F.gelu(x, approximate="tanh"), x.double(), gradient.double()
    )
    # The logistic function is good to some eight roundings of float32, which a gradient of up to 9
    # times x·z' of up to 13 enlarges; then the result is rounded to the dtype, float16's smallest
    # to steps of 2⁻²⁴.
    close = {"rtol": torch.finfo(dtype).eps, "atol": 9 * 13 * 8 * 2**-24}
    for result, wanted in zip(gelu_and_gradient(native.gelu, x, gradient), exact, strict=True):
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), wanted, **close)


def test_gelu_of_extreme_values(instructions):
    x = torch.tensor([float("inf"), 1e30, 100.0, -100.0, -1e30, float("nan")])
    result, gradient = gelu_and_gradient(native.gelu, x, torch.ones_like(x))
    assert torch.equal(result[:3], x[:3])
    torch.testing.assert_close(result[3:5], torch.zeros(2), rtol=0, atol=1e-7)
    torch.testing.assert_close(gradient[:5], torch.tensor([1.0, 1, 1, 0, 0]), rtol=0, atol=1e-7)
    assert result[5].isnan()
    assert gradient[5].isnan()


def residual_norm(x, added, weight, bias, *, rms, dtype):
    return native.residual_norm(x, added, weight, bias, epsilon=1e-3, rms=rms, dtype=dtype)


def in_float64(x, added, weight, bias, *, rms, dtype):
    total = x if added is None else x + added
    if rms:
        return total, F.rms_norm(total, total.shape[-1:], weight, 1e-3)
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, 1e-3)


def results_and_gradients(function, operands, gradients, **options):
    operands = [None if x is None else x.detach().requires_grad_() for x in operands]
    results = function(*operands, **options)
    kept = [x for x in operands if x is not None]
    return *(r.detach() for r in results), *torch.autograd.grad(results, kept, gradients)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_a_stream_and_its_gradients(dtype, is_added, rms, instructions):
    draw = torch.Generator().manual_seed(1)
    for width in WIDTHS:
        x, added, *gradients = torch.randn(4, 2, 65, width, generator=draw).unbind()
        weight, bias = torch.randn(2, width, generator=draw).unbind()
        added = added.to(dtype) if is_added else None
        operands = (x, added, weight, None if rms else bias)
        gradients[1] = gradients[1].to(dtype)
        exact = results_and_gradients(
            in_float64,
            [None if t is None else t.double() for t in operands],
            [g.double() for g in gradients],
            rms=rms,
            dtype=dtype,
        )
        results = results_and_gradients(residual_norm, operands, gradients, rms=rms, dtype=dtype)
        for result, wanted in zip(results, exact, strict=True):
            # Gains add up 130 rows of products near 1; a row of nearly equal numbers divides by the
            # root of the epsilon, so by 0.03 at least. Then comes the rounding to the dtype.
            close = {"rtol": 1.1 * torch.finfo(result.dtype).eps, "atol": 130 * 30 * 2**-24}
            torch.testing.assert_close(result.double(), wanted, **close)


def test_second_derivatives_are_refused():
    x, added, weight, bias = (torch.randn(67, requires_grad=True) for _ in range(4))
    total, normed = residual_norm(
        x[None], added[None], weight, bias, rms=False, dtype=torch.float32
    )
    cases = [(native.gelu(x).sum(), [x]), (normed.sum() + total.sum(), [x, added, weight])]
    for result, operands in cases:
        gradients = torch.autograd.grad(result, operands, create_graph=True)
        for gradient in gradients:
            for operand in operands:
                with pytest.raises(regard.Error, match="first derivatives only"):
                    torch.autograd.grad(gradient.sum(), operand, retain_graph=True)


class Seen(torch.Tensor):
    pass


def _of_gelu():
    x = torch.randn(67, requires_grad=True)
    return native.gelu(x), x


def _of_norm():
    x, weight = torch.randn(2, 67, requires_grad=True).unbind()
    _, normed = residual_norm(x[None], None, weight, None, rms=True, dtype=torch.float32)
    return normed[0], x


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's own rules
@pytest.mark.parametrize("case", [_of_gelu, _of_norm])
def test_gradients_that_are_not_plain_tensors_are_resolved_or_refused(case):
    result, x = case()
    gradient = torch.randn(67)

    def of_x(gradient, **options):
        return torch.autograd.grad(result, x, gradient, retain_graph=True, **options)[0]

    assert torch.equal(of_x(torch._neg_view(gradient)), of_x(-gradient))
    assert torch.equal(of_x(torch._efficientzerotensor(67)), torch.zeros(67))
    assert torch.equal(of_x(gradient.as_subclass(Seen)), of_x(gradient))
    with pytest.raises(regard.Error, match=r"as with is_grads_batched=True; .* model\.double"):
        of_x(torch.stack([gradient, gradient]), is_grads_batched=True)
    with forward_ad.dual_level(), pytest.raises(regard.Error, match="first derivatives only"):
        of_x(forward_ad.make_dual(gradient, gradient))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_are_bitwise_independent_of_threads(dtype, threads, instructions):
    draw = torch.Generator().manual_seed(2)
    x, *gradients = torch.randn(3, 331, 67, generator=draw).unbind()
    added, weight, bias = x.flip(0).to(dtype), *torch.randn(2, 67, generator=draw).unbind()
    gradients[1] = gradients[1].to(dtype)
    kept = []
    for count in (1, 3):
        threads(count)
        kept.append(
            (
                *results_and_gradients(
                    residual_norm, (x, added, weight, bias), gradients, rms=False, dtype=dtype
                ),
                *gelu_and_gradient(native.gelu, x.to(dtype), gradients[1]),
            )
        )
    assert all(map(torch.equal, *kept))
