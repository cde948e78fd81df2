"""A head's maps against dense products in float64, made from the models' weights by name.

Figures of float64 against float64 are held to 1e-10: a few hundred terms of size about one, each
rounded at 1e-16, and eigenvalues that are conditioned well enough. What goes through a model's own
float32 is held to 1e-5, a hundred roundings at 1e-7.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.circuits import LowRank, copying, ov, qk
from regard.gpt import GPT, GPTConfig

EXACT = {"rtol": 1e-10, "atol": 1e-10}
SINGLE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def spread(model):
    """Weights of a size at which nothing drowns, biases included, which must not matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.eval()


def our_gpt():
    return spread(GPT(GPTConfig(vocab_size=29, context=13, layers=2, heads=5, dim=35)))


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=29, n_positions=13, n_embd=33, n_layer=2, n_head=3)
    return spread(transformers.GPT2LMHeadModel(config))


def llama_like(name, **options):
    """Grouped heads, and H·D = 48 beside E = 30."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 29,
        "hidden_size": 30,
        "intermediate_size": 31,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "max_position_embeddings": 17,
        "pad_token_id": 0,
    }
    config = getattr(transformers, f"{name}Config")(**sizes | options)
    return spread(getattr(transformers, f"{name}ForCausalLM")(config))


def llama(**options):
    return llama_like("Llama", tie_word_embeddings=False, **options)


MODELS = {
    "gpt": our_gpt,
    "gpt2": gpt2,
    "llama": llama,
    "mistral": lambda: llama_like("Mistral"),
    "gemma": lambda: llama_like("Gemma"),
    # Qwen2 has biases and no head_dim of its own: it reads E/H where none is given.
    "qwen2": lambda: llama_like("Qwen2", hidden_size=24, head_dim=4),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


HEADS = {"gpt": 5, "gpt2": 3, "llama": 6, "mistral": 6, "gemma": 6, "qwen2": 6}


def dense(model, layer, head):
    """Query, key and value (E, D), output (D, E) and embedding (V, E), by name, in float64."""
    at = {name: weight.detach().double() for name, weight in model.named_parameters()}
    if isinstance(model, GPT):
        size, block = 7, f"h.{layer}.attn"
        own = torch.arange(head * size, (head + 1) * size)
        three = at[f"{block}.c_attn.weight"]
        query, key, value = (three[part * 35 + own].T for part in range(3))
        return query, key, value, at[f"{block}.c_proj.weight"][:, own].T, at["wte.weight"]
    if hasattr(model, "transformer"):
        size, block = 11, f"transformer.h.{layer}.attn"
        own = torch.arange(head * size, (head + 1) * size)
        three = at[f"{block}.c_attn.weight"]
        query, key, value = (three[:, part * 33 + own] for part in range(3))
        return query, key, value, at[f"{block}.c_proj.weight"][own], at["transformer.wte.weight"]
    size, block = getattr(model.config, "head_dim", 4), f"model.layers.{layer}.self_attn"
    own = torch.arange(head * size, (head + 1) * size)
    shared = torch.arange(head // 2 * size, (head // 2 + 1) * size)
    query = at[f"{block}.q_proj.weight"][own].T
    key, value = (at[f"{block}.{name}_proj.weight"][shared].T for name in "kv")
    return (
        query,
        key,
        value,
        at[f"{block}.o_proj.weight"][:, own].T,
        at["model.embed_tokens.weight"],
    )


def unembedding(model):
    return (model.wte if isinstance(model, GPT) else model.lm_head).weight.detach().double().T


def heads(model):
    return [(layer, head) for layer in range(2) for head in (0, 1, 2)]


def test_the_factors_are_the_head_s_matrices(model):
    for layer, head in heads(model):
        query, key, value, output, _ = dense(model, layer, head)
        compared, copied = qk(model, layer, head), ov(model, layer, head)
        # Taken from the weights, not worked out: equal to the last bit.
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
    monkeypatch.setattr("regard.circuits._ROWS", 3)
    assert copying(model, 1, 4) == pytest.approx(whole, abs=1e-12)


# Against what the models compute


def listen(model, name):
    """Note what the second layer's attention is given and what it gives, without its biases."""
    if name == "gpt":
        norm, attention = model.h[1].ln_1, model.h[1].attn
    elif name == "gpt2":
        norm, attention = model.transformer.h[1].ln_1, model.transformer.h[1].attn
    else:
        norm, attention = model.model.layers[1].input_layernorm, model.model.layers[1].self_attn
    for key, parameter in attention.named_parameters():
        if key.endswith("bias"):
            nn.init.zeros_(parameter)
    seen = {}

    def added(module, inputs, output):
        seen["added"] = (output if isinstance(output, torch.Tensor) else output[0])[0]

    norm.register_forward_hook(lambda module, inputs, output: seen.update(x=output[0]))
    attention.register_forward_hook(added)
    return seen


def test_qk_gives_the_scores_of_our_gpt():
    model = our_gpt().double()
    seen = listen(model, "gpt")
    with torch.no_grad():
        _, patterns = model.with_patterns(torch.randint(29, (1, 11)))
    x, future = seen["x"], torch.ones(11, 11).triu(1).bool()
    for head in range(5):
        scaled = x @ qk(model, 1, head) @ x.T / 7**0.5
        expected = scaled.masked_fill(future, -torch.inf).softmax(-1)
        torch.testing.assert_close(patterns[1][0, head].dense(), expected, **EXACT)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma"])
def test_qk_gives_the_eager_weights_of_a_model(name):
    """Every token stands at position 0, or rotary positions would be in the scores."""
    model = MODELS[name]().double()
    model.set_attn_implementation("eager")
    seen = listen(model, name)
    at_zero = {"position_ids": torch.zeros(1, 7, dtype=torch.int64)}
    with torch.no_grad():
        result = model(
            torch.randint(29, (1, 7)),
            attention_mask=torch.ones(1, 7, dtype=torch.int64),
            output_attentions=True,
            **at_zero,
        )
    x, future = seen["x"], torch.ones(7, 7).triu(1).bool()
    weights = result.attentions[1][0]  # (H, 7, 7)
    assert weights.shape == (HEADS[name], 7, 7)
    for head, actual in enumerate(weights):
        circuit = qk(model, 1, head)
        scaled = x @ circuit @ x.T / circuit.left.shape[1] ** 0.5
        expected = scaled.masked_fill(future, -torch.inf).softmax(-1)
        torch.testing.assert_close(actual, expected, **SINGLE)  # their softmax is of float32


@pytest.mark.parametrize("name", MODELS)
def test_ov_is_what_the_heads_add_to_a_lone_token(name):
    """A token alone puts all its weight on itself, so its heads' maps add up to the layer."""
    model = MODELS[name]().double()
    seen = listen(model, name)
    with torch.no_grad():
        model(torch.tensor([[3]]))
    total = sum(seen["x"] @ ov(model, 1, head) for head in range(HEADS[name]))
    torch.testing.assert_close(total, seen["added"], **EXACT)


# Heads whose score is known


def known_head(sign):
    """A GPT of one head, as wide as the model, that hands on what it reads."""
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


# The operator


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
    monkeypatch.setattr("regard.circuits._ROWS", 3)
    with Sizes() as sizes:
        copying(model, 0, 1)
        qk(model, 0, 1).singular_values()
        ov(model, 0, 1).eigenvalues()
    assert sizes.largest == 3 * 106  # three rows of the vocabulary, in float64


# What is refused


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


def test_importing_it_brings_no_transformers():
    script = "import sys, regard.circuits; print('transformers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
