"""A head's circuits and its copying score against dense products in float64."""

import pytest
import torch
from support.circuit_models import EXACT, dense, our_gpt
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.gpt import GPT, GPTConfig
from regard.lens.circuits import copying, ov, qk


def unembedding(model):
    return (model.wte if isinstance(model, GPT) else model.lm_head).weight.detach().double().T


def heads(model):
    return [(layer, head) for layer in range(2) for head in (0, 1, 2)]


def test_the_factors_are_the_head_s_matrices(model):
    for layer, head in heads(model):
        query, key, value, output, _ = dense(model, layer, head)
        compared, copied = qk(model, layer, head), ov(model, layer, head)
        # Slices of the weights, not computed: equal to the last bit.
        assert torch.equal(compared.left.double(), query)
        assert torch.equal(compared.right.double(), key.T)
        assert torch.equal(copied.left.double(), value)
        assert torch.equal(copied.right.double(), output)


def test_singular_values_and_eigenvalues_are_those_of_the_product(model):
    for layer, head in heads(model):
        for circuit in (qk(model, layer, head), ov(model, layer, head)):
            product = circuit.left.double() @ circuit.right.double()
            size = circuit.left.shape[1]
            singular = torch.linalg.svdvals(product)
            torch.testing.assert_close(circuit.singular_values(), singular[:size], **EXACT)
            assert singular[size:].max() < 1e-10
            assert_same_spectrum(circuit.eigenvalues(), torch.linalg.eigvals(product))


def assert_same_spectrum(some, every):
    """Every eigenvalue of the one is in the other, and what is left there is zero."""
    left = list(every)
    for value in some:
        nearest = min(range(len(left)), key=lambda i: (left[i] - value).abs().item())
        torch.testing.assert_close(left.pop(nearest), value, **EXACT)
    assert all(value.abs() < 1e-10 for value in left)


def test_copying_is_that_of_the_whole_ov_circuit(model):
    for layer, head in heads(model):
        _, _, value, output, embedding = dense(model, layer, head)
        values = torch.linalg.eigvals(embedding @ value @ output @ unembedding(model))  # (V,)
        expected = values.sum().real / values.abs().sum()
        assert copying(model, layer, head) == pytest.approx(expected.item(), abs=1e-10)


def test_copying_does_not_depend_on_how_the_vocabulary_is_cut(monkeypatch):
    model = our_gpt()
    whole = copying(model, 1, 4)
    monkeypatch.setattr("regard.lens.circuits._ROWS", 3)
    assert copying(model, 1, 4) == pytest.approx(whole, abs=1e-12)


def known_head(sign):
    """A GPT of one head, as wide as the model, that writes what it reads."""
    model = GPT(GPTConfig(vocab_size=29, context=13, layers=1, heads=1, dim=11)).double()
    with torch.no_grad():
        model.wte.weight.normal_()
        model.h[0].attn.c_attn.weight[22:] = torch.eye(11)
        model.h[0].attn.c_proj.weight.copy_(sign * torch.eye(11))
    return model


def test_a_head_that_copies_scores_1_and_its_negative_minus_1():
    """With tied embeddings its whole circuit is W·Wᵀ, whose eigenvalues are not negative."""
    assert copying(known_head(1), 0, 0) == pytest.approx(1, abs=1e-10)
    assert copying(known_head(-1), 0, 0) == pytest.approx(-1, abs=1e-10)


def test_a_head_that_rotates_scores_0_and_one_that_writes_nothing_too():
    model = known_head(1)
    with torch.no_grad():
        model.wte.weight.copy_(torch.eye(29)[:, :11])
        turn = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])  # its eigenvalues are ±i
        model.h[0].attn.c_proj.weight.copy_(torch.block_diag(*[turn] * 5, torch.zeros(1, 1)))
    assert copying(model, 0, 0) == pytest.approx(0, abs=1e-10)
    nn.init.zeros_(model.h[0].attn.c_proj.weight)
    assert copying(model, 0, 0) == 0


def test_the_factors_are_views_without_gradients():
    model = our_gpt()
    circuit = ov(model, 0, 2)
    assert not circuit.left.requires_grad
    assert circuit.left.untyped_storage().data_ptr() == (
        model.h[0].attn.c_attn.weight.untyped_storage().data_ptr()
    )


def test_nothing_of_the_size_of_the_stream_squared_or_of_the_vocabulary_is_made(monkeypatch):
    class Sizes(TorchDispatchMode):
        """Notes the largest tensor that is made and is no view of the model's own."""

        largest = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **kwargs or {})
            for one in result if isinstance(result, tuple | list) else [result]:
                if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in own:
                    self.largest = max(self.largest, one.numel())
            return result

    model = GPT(GPTConfig(vocab_size=131, context=3, layers=1, heads=53, dim=106))
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    monkeypatch.setattr("regard.lens.circuits._ROWS", 3)
    with Sizes() as sizes:
        copying(model, 0, 1)
        qk(model, 0, 1).singular_values()
        ov(model, 0, 1).eigenvalues()
    assert sizes.largest == 3 * 106  # three rows of the vocabulary, in float64
