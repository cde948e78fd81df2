"""Models and indices without circuits, and what the error says."""

import pytest
import torch
from support.circuit_models import dense, gpt2, llama, llama_like, our_gpt
from torch import nn

from regard.lens.circuits import copying, ov, qk


@pytest.mark.parametrize("function", [qk, ov, copying])
def test_indices_out_of_range(function):
    model = our_gpt()
    with pytest.raises(IndexError, match="layer is 2, but there are layers 0 to 1"):
        function(model, 2, 0)
    with pytest.raises(IndexError, match="head is -1, but there are heads 0 to 4"):
        function(model, 0, -1)
    with pytest.raises(TypeError, match=r"layer must be an integer from 0 to 1, but is 1\.0"):
        function(model, 1.0, 0)
    with pytest.raises(TypeError, match="head must be an integer from 0 to 4, but is True"):
        function(model, 0, True)


def test_heads_are_counted_by_queries_where_keys_are_shared():
    model = llama()
    assert ov(model, 0, 5).left.shape == (30, 8)
    with pytest.raises(IndexError, match="head is 6, but there are heads 0 to 5"):
        ov(model, 0, 6)


def test_values_may_have_a_width_of_their_own():
    model = llama()
    attention = model.model.layers[0].self_attn
    attention.v_proj = nn.Linear(30, 3 * 5, bias=False)
    attention.o_proj = nn.Linear(6 * 5, 30, bias=False)
    circuit = ov(model, 0, 5)
    assert torch.equal(circuit.left, attention.v_proj.weight[10:].T)
    assert torch.equal(circuit.right, attention.o_proj.weight[:, 25:].T)
    assert qk(model, 0, 5).left.shape == (30, 8)


@pytest.mark.parametrize("model", [nn.Linear(3, 3), None, "gpt2", nn.TransformerEncoderLayer(4, 2)])
def test_other_models(model):
    with pytest.raises(TypeError, match=rf"model is {type(model).__name__}.*supported are"):
        qk(model, 0, 0)


def test_blocks_of_another_kind():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPTJConfig(n_embd=12, n_head=3, n_layer=1, rotary_dim=2, vocab_size=5)
    with pytest.raises(
        TypeError, match=r"layer 0, GPTJBlock, has no attention that is known; supported are"
    ):
        qk(transformers.GPTJModel(config), 0, 0)


def test_models_without_a_language_head():
    model = gpt2().transformer
    assert qk(model, 0, 0).shape == (33, 33)
    with pytest.raises(TypeError, match=r"GPT2Model, which has no unembedding.*GPT2LMHeadModel"):
        copying(model, 0, 0)
    assert ov(llama().model, 0, 0).shape == (30, 30)
    with pytest.raises(TypeError, match="LlamaModel, which has no unembedding"):
        copying(llama().model, 0, 0)


def test_queries_that_are_normalised_have_a_map_of_values_alone():
    model = llama_like("Qwen3")
    with pytest.raises(TypeError, match=r"model has q_norm, k_norm inside its attention.*use ov"):
        qk(model, 0, 0)
    _, _, value, output, _ = dense(model, 1, 4)
    assert torch.equal(ov(model, 1, 4).left.double(), value)
    assert torch.equal(ov(model, 1, 4).right.double(), output)
    assert -1 <= copying(model, 1, 4) <= 1


def test_other_parts_of_an_attention_are_refused():
    model = llama()
    model.model.layers[1].self_attn.gate = nn.Linear(3, 5)
    assert ov(model, 0, 0).shape == (30, 30)
    for function in (qk, ov, copying):
        with pytest.raises(TypeError, match="model has gate inside its attention"):
            function(model, 1, 0)
    model.model.layers[1].self_attn.gate = nn.Dropout()
    assert ov(model, 1, 0).shape == (30, 30)
    model.model.layers[1].self_attn.v_norm = nn.RMSNorm(8, elementwise_affine=False)
    with pytest.raises(TypeError, match="model has v_norm inside its attention"):
        ov(model, 1, 0)


def test_heads_of_another_kind():
    """Twice as many queries, as a gate beside them makes."""
    model = llama()
    model.model.layers[0].self_attn.q_proj = nn.Linear(30, 96, bias=False)
    with pytest.raises(ValueError, match=r"an attention of \[\(30, 96\), .* of another kind"):
        ov(model, 0, 0)


@pytest.mark.parametrize("weight", [torch.zeros(48, 30, dtype=torch.int8), None])
def test_matrices_that_are_not_plain(weight):
    model = llama()
    projection = model.model.layers[0].self_attn.q_proj
    if weight is None:  # an adapter wraps the matrix
        model.model.layers[0].self_attn.q_proj = nn.Sequential(projection)
    else:
        projection.weight = nn.Parameter(weight, requires_grad=False)
    with pytest.raises(TypeError, match=r"model has a q_proj of .*expected a plain matrix"):
        qk(model, 0, 0)


def test_matrices_without_values():
    with pytest.raises(ValueError, match="model has a c_attn without values"):
        qk(our_gpt().to("meta"), 0, 0)


def test_two_vocabularies():
    model = llama()
    model.lm_head = nn.Linear(30, 31, bias=False)
    with pytest.raises(ValueError, match=r"embedding \(29, 30\) and an unembedding \(30, 31\)"):
        copying(model, 0, 0)


def test_weights_that_are_not_finite():
    model = our_gpt()
    with torch.no_grad():
        model.wte.weight[3, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite values in its embeddings"):
        copying(model, 0, 0)
    with torch.no_grad():
        model.h[0].attn.c_proj.weight[0, 0] = torch.inf
    with pytest.raises(ValueError, match="right holds NaN or infinite values"):
        copying(model, 0, 0)
    with pytest.raises(ValueError, match="right holds NaN or infinite values"):
        ov(model, 0, 0).singular_values()
