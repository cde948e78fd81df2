"""A matrix of low rank, kept as its two factors."""

import pytest
import torch
from support.circuit_models import EXACT

from regard.lens.circuits import LowRank


def test_it_is_a_linear_operator_from_both_sides():
    circuit = LowRank(*(torch.randn(n, m, dtype=torch.float64) for n, m in ((13, 5), (5, 13))))
    product = circuit.left @ circuit.right
    assert circuit.shape == product.shape
    x, y = torch.randn(2, 3, 13, dtype=torch.float64), torch.randn(2, 13, 7, dtype=torch.float64)
    torch.testing.assert_close(x @ circuit, x @ product, **EXACT)
    torch.testing.assert_close(torch.matmul(x, circuit), x @ product, **EXACT)
    torch.testing.assert_close(x[0, 0] @ circuit, x[0, 0] @ product, **EXACT)
    torch.testing.assert_close(circuit @ y, product @ y, **EXACT)
    torch.testing.assert_close(circuit @ y[0, :, 0], product @ y[0, :, 0], **EXACT)


def test_small_singular_values_are_kept():
    """Far below what a Gram matrix, whose singular values are their squares, would keep."""
    left, right = (torch.linalg.qr(torch.randn(17, 3, dtype=torch.float64)).Q for _ in range(2))
    values = torch.tensor([1.0, 1e-5, 1e-10], dtype=torch.float64)
    circuit = LowRank(left * values, right.T)
    torch.testing.assert_close(circuit.singular_values(), values, rtol=1e-4, atol=0)


def test_half_precision_is_computed_in_float64():
    circuit = LowRank(*(torch.randn(n, m).bfloat16() for n, m in ((13, 5), (5, 13))))
    product = circuit.left.double() @ circuit.right.double()
    torch.testing.assert_close(
        circuit.singular_values(), torch.linalg.svdvals(product)[:5], **EXACT
    )


def test_factors_that_do_not_fit():
    left, right = torch.zeros(7, 3), torch.zeros(3, 7)
    with pytest.raises(TypeError, match="left must be a floating-point tensor, but is list"):
        LowRank([[1.0]], right)
    with pytest.raises(TypeError, match=r"right must be .* but is torch\.int64"):
        LowRank(left, right.long())
    with pytest.raises(ValueError, match=r"left has shape \(7, 3\) and right \(7, 3\).*transpose"):
        LowRank(left, left)
    with pytest.raises(ValueError, match=r"right torch\.float64 on cpu.*right\.to\(left\)"):
        LowRank(left, right.double())


def test_operands_that_do_not_fit():
    circuit = LowRank(torch.zeros(7, 3), torch.zeros(3, 7))
    with pytest.raises(ValueError, match=r"\(5, 3\) .* does not fit LowRank\(7 × 7.*\(\.\.\., E\)"):
        torch.zeros(5, 3) @ circuit
    with pytest.raises(ValueError, match=r"\(5, 7\) .* \(E,\) or \(\.\.\., E, N\) with E=7"):
        circuit @ torch.zeros(5, 7)
    with pytest.raises(ValueError, match=r"torch\.float64 .* see Tensor\.to"):
        torch.zeros(7).double() @ circuit
    with pytest.raises(ValueError, match=r"\(\) of torch"):
        circuit @ torch.tensor(1.0)
    with pytest.raises(TypeError):
        circuit @ [1.0]
    with pytest.raises(TypeError, match=r"^torch\.stack takes tensors.*LowRank.*left @ map\.right"):
        torch.stack([circuit, circuit])
