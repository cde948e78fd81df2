"""What is kept of values behind W_O, beside hooks and loops over heads in float64."""

from functools import partial

import pytest
import torch
from support.circuit_models import MODELS, dense, randomize
from torch import nn

import regard
from regard.lens import directions, norms, values
from regard.models import LanguageModel
from regard.nn import KVCache, MultiHeadAttention

T = 11
# In float64: sums of some dozens of products; gains are measured past an epsilon of 1e-11.
EXACT = {"rtol": 1e-9, "atol": 1e-9}
# Norms of transformers compute in float32, whatever their input.
NORM = {"rtol": 1e-5, "atol": 1e-5}
IDS = torch.arange(T)[None] * 5 % 29


class Letters:
    """A tokenizer of 29 tokens, of which nothing is read here."""

    vocab_size = 29
    tokens = ()


def _see(seen, path, _, __, output):
    seen[path] = output.detach()


def parts_of(name):
    """The model in float64, and of each layer v W_h in float64, ``(H, T, E)``, by hooks."""
    model = MODELS[name]().double()
    seen = {}
    paths = {}
    for path, part in model.named_modules():
        if path.endswith(("attn.c_proj", "o_proj")):
            paths[path.rpartition(".")[0]] = part
    for path, part in model.named_modules():
        if path.endswith(("c_attn", "v_proj")):
            part.register_forward_hook(partial(_see, seen, path.rpartition(".")[0]))
    with torch.no_grad():
        model(IDS)
    moved = []
    for layer, (path, output) in enumerate(paths.items()):
        made = seen[path][0]
        _, _, value, _, _ = dense(model, layer, 0)
        size = value.shape[1]
        heads = (output.weight.shape[0 if name == "gpt2" else 1]) // size
        groups = heads if "gpt" in name else model.config.num_key_value_heads
        own = made[:, -groups * size :].unflatten(-1, (groups, size))  # biases included
        moved.append(
            torch.stack(
                [own[:, h * groups // heads] @ dense(model, layer, h)[3] for h in range(heads)]
            )
        )
    return model, moved


@pytest.mark.parametrize("name", MODELS)
def test_norms_and_directions_are_those_of_the_definition(name):
    model, moved = parts_of(name)
    along = torch.randn(3, moved[0].shape[-1], dtype=torch.float64)
    keep = [norms(model), directions(model, along), values()]
    with torch.no_grad(), regard.record(model, keep=keep) as recording:
        model(IDS)
    assert len(recording) == len(moved)
    for layer, expected in zip(recording.layers, moved, strict=True):
        torch.testing.assert_close(layer.kept["norm"][0], expected.norm(dim=-1), **EXACT)
        torch.testing.assert_close(layer.kept["direction"][0], expected @ along.T, **EXACT)
        weights = layer.pattern.dense()[0]
        weighted = layer.pattern.weighted(key=layer.kept["norm"]).dense()[0]
        entries = weights[..., None] * expected[:, None]  # (H, L, S, E): the vectors that arrive
        torch.testing.assert_close(weighted, entries.norm(dim=-1), **EXACT)


@pytest.mark.parametrize("name", ["gpt", "gpt2", "llama", "gemma"])
def test_directions_of_tokens_add_up_to_their_logits(name):
    """Final norms with a gain, with one plus it, and such that centre; the scale is one a row.

    The logit is a sum over what each part adds to the stream; heads add sums over keys.
    """
    module, moved = parts_of(name)
    model = LanguageModel(module, Letters(), name=name)
    places, tokens = model.places, [3, 17]
    with torch.no_grad(), regard.record(model, keep=directions(model, tokens)) as recording:
        module(IDS)
    norm, head = (module.get_submodule(path) for path in (places.norm, places.unembed))
    rows = head.weight[tokens].detach()
    stream = torch.randn(1, T, rows.shape[-1], dtype=torch.float64)
    for layer, own in zip(recording.layers, moved, strict=True):
        weights = layer.pattern.dense()[0]
        added = (weights[..., None] * own[:, None]).sum(dim=(0, 2))  # (L, E), by all heads
        # The norm at x, and linear in what is added where its scale is held: one number a row.
        x = stream[0]
        centred = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
        eps = getattr(norm, "eps", None) or norm.variance_epsilon
        scale = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        bias = getattr(norm, "bias", None)
        still = norm(stream)[0] - (0 if bias is None else bias)
        gain = still / (centred * scale)  # (L, E), the same in each row
        less = added - added.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else added
        expected = (gain * less * scale) @ rows.T  # (L, n)
        kept = layer.kept["direction"][0]
        found = [layer.pattern.weighted(key=kept[None, ..., n]).dense()[0] for n in range(2)]
        found = torch.stack(found, dim=-1).sum(dim=(0, 2)) * scale
        torch.testing.assert_close(found, expected.detach(), **NORM)


@pytest.mark.parametrize("make", [lambda: nn.MultiheadAttention(15, 3, batch_first=True)])
def test_torchs_own_layer(make):
    model = randomize(make().double())
    x = torch.randn(2, T, 15, dtype=torch.float64)
    with torch.no_grad(), regard.record(model, keep=norms(model)) as recording:
        model(x, x, x)
        value = nn.functional.linear(x, model.in_proj_weight[30:], model.in_proj_bias[30:])
    columns = model.out_proj.weight.split(5, dim=1)
    expected = [v @ w.T for v, w in zip(value.split(5, dim=-1), columns, strict=True)]
    expected = torch.stack(expected, dim=1).norm(dim=-1)
    torch.testing.assert_close(recording.layers[0].kept["norm"], expected.detach(), **EXACT)


def test_layers_of_torch_within_a_model():
    layer = nn.TransformerDecoderLayer(15, 3, 17, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    with torch.no_grad(), regard.record(model, keep=norms(model)) as recording:
        model(torch.randn(2, T, 15), torch.randn(2, 7, 15))
    assert {layer.kept["norm"].shape for layer in recording.layers} == {(2, 3, T), (2, 3, 7)}


def test_a_generation_equals_the_whole_text():
    model = MultiHeadAttention(30, 6, groups=3, mask=regard.causal(), bias=True).double().eval()
    x, cache = torch.randn(2, T, 30, dtype=torch.float64), KVCache(T)
    keep = [norms(model), directions(model, torch.randn(2, 30, dtype=torch.float64))]
    with torch.no_grad(), regard.record(model, keep=keep) as steps:
        for part in x.split([6, 1, 1, 3], dim=1):
            model(part, cache=cache)
    with torch.no_grad(), regard.record(model, keep=keep) as whole:
        model(x)
    columns = model.output.weight.split(5, dim=1)
    value = model.value(x).split(5, dim=-1)
    expected = torch.stack([value[h // 2] @ columns[h].T for h in range(6)], dim=1).norm(dim=-1)
    torch.testing.assert_close(whole.layers[0].kept["norm"], expected.detach(), **EXACT)
    for name, tensor in whole.layers[0].kept.items():
        torch.testing.assert_close(steps.layers[0].kept[name], tensor, **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_norms_of_low_precision_are_computed_in_float32(dtype):
    model = MultiHeadAttention(30, 6, groups=3, mask=regard.causal()).to(dtype).eval()
    x = torch.randn(2, T, 30, dtype=dtype)
    with torch.no_grad(), regard.record(model, keep=[norms(model), values()]) as recording:
        model(x)
    kept = recording.layers[0].kept
    assert kept["norm"].dtype == torch.float32
    assert kept["norm"].untyped_storage().nbytes() == 2 * 6 * T * 4  # B·H·S numbers of four bytes
    columns = model.output.weight.double().split(5, dim=1)
    moved = [kept["value"][:, h // 2].double() @ columns[h].T for h in range(6)]
    expected = torch.stack(moved, dim=1).norm(dim=-1)
    torch.testing.assert_close(kept["norm"].double(), expected.detach(), rtol=1e-5, atol=1e-6)


def test_a_model_under_autocast_keeps_its_digits():
    model = MultiHeadAttention(30, 6).eval()
    x = torch.randn(2, T, 30)
    half = torch.autocast("cpu", torch.bfloat16)
    with torch.no_grad(), half, regard.record(model, keep=norms(model)) as recording:
        model(x)
    assert recording.layers[0].kept["norm"].dtype == torch.float32


def test_a_layer_without_a_known_output_is_refused():
    class Sdpa(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x)

    model = nn.ModuleList([Sdpa(), MultiHeadAttention(6, 2)])
    refused = pytest.raises(regard.Error, match="no W_O is known of '0'")
    with refused, regard.record(model, keep=norms(model)):
        model[0](torch.randn(2, 3, 5, 7))
    with pytest.raises(TypeError, match="in which no W_O is known"):
        norms(model[0])
    with pytest.raises(TypeError, match="model must be"):
        norms("gpt2")


@pytest.mark.parametrize(
    ("tokens", "error", "said"),
    [
        (5, TypeError, "no unembedding is known"),
        ([True], TypeError, "must be ids"),
        (torch.randn(6), ValueError, "directions are \\(n, E\\)"),
    ],
)
def test_directions_that_are_not(tokens, error, said):
    with pytest.raises(error, match=said):
        directions(MultiHeadAttention(6, 2), tokens)


def test_directions_of_another_width_are_refused():
    model = MultiHeadAttention(6, 2)
    refused = pytest.raises(ValueError, match="6 dimensions")
    with refused, regard.record(model, keep=directions(model, torch.randn(3, 5))):
        model(torch.randn(1, 4, 6))


def test_an_id_beyond_the_vocabulary_is_refused():
    model = regard.models.open(None)
    with pytest.raises(ValueError, match="is no id of a vocabulary of"):
        directions(model, [10**6])
