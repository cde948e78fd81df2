"""Readouts, weights and tensors as other libraries name and label them."""

import importlib
import sys
import types

import pytest
import torch
from support.recordings import B, D, H, L, recorded

import regard
from regard.integrations.transformer_lens import CacheNames
from regard.integrations.xarray import array

G, LAYERS = 1, 2
TOKENS = tuple(tuple(f"{text}{place}" for place in range(L)) for text in "ab")


def test_the_names_of_transformer_lens():
    query = torch.randn(B, H, L, D)
    key, value = torch.randn(2, B, G, L, D)
    model = torch.nn.ModuleList([torch.nn.Identity() for _ in range(LAYERS)])
    attend = torch.nn.functional.scaled_dot_product_attention
    with regard.record(keep=regard.lens.values()) as recording:
        contexts = [
            attend(scale * query, key, value, is_causal=True, enable_gqa=True)
            for scale in range(1, len(model) + 1)
        ]
    names = CacheNames(recording, rotary=False)
    assert [name for name in names if "blocks.1" in name] == [
        f"blocks.1.attn.hook_{name}" for name in ("q", "k", "attn_scores", "pattern", "v", "z")
    ]
    assert len(names) == 6 * LAYERS
    scores = (2 * query.double() @ key.double().mT / D**0.5).masked_fill(
        ~torch.ones(L, L).tril().bool(), -torch.inf
    )
    expected = {
        "q": 2 * query.transpose(1, 2),
        "k": key.transpose(1, 2),
        "v": value.transpose(1, 2),
        "attn_scores": scores,
        "pattern": scores.softmax(-1),
        "z": contexts[1].transpose(1, 2),
    }
    for name, tensor in expected.items():
        found = names[f"blocks.1.attn.hook_{name}"]
        torch.testing.assert_close(found, tensor.float(), rtol=1e-5, atol=1e-5)
        assert torch.equal(names[name, 1], found)
        assert (name, 1) in names
    assert ("pattern", 2) not in names
    assert 0 not in names
    with pytest.raises(KeyError, match=r"'blocks.2.attn.hook_q' is not in the recording"):
        names["q", 2]


def test_what_a_recording_lacks_has_no_name():
    names = CacheNames(recorded(torch.randn(1, 2, B, H, L, D)), rotary=True)
    assert [name.rpartition("hook_")[2] for name in names] == [
        *("rot_q", "rot_k", "attn_scores", "pattern")
    ]
    long = torch.zeros(2, 1, 1, 20_000, D)
    with regard.record() as recording:
        torch.nn.functional.scaled_dot_product_attention(*long, long[1], is_causal=True)
    names = CacheNames(recording, rotary=False)
    for name in ("pattern", "attn_scores"):
        with pytest.raises(ValueError, match=r"take 1.5 GiB, above the limit of 1.0 GiB"):
            names[name, 0]


def test_a_labelled_array_of_xarray():
    xarray = pytest.importorskip("xarray")
    recording = recorded(torch.randn(4, 2, B, H, L, D), layers=[1, 3], heads=[2, 0], rows=[1, -1])
    readings = recording.read(regard.readouts.TopK(2), regard.readouts.Received())
    top = array(readings["top_weights"], tokens=TOKENS)
    assert isinstance(top, xarray.DataArray)
    assert (top.name, top.dims) == ("top_weights", ("layer", "batch", "head", "query", "rank"))
    assert [top[axis].values.tolist() for axis in ("layer", "head", "query")] == [
        [1, 3],
        [2, 0],
        [1, L - 1],
    ]
    assert top["query_token"].values.tolist() == [["a1", f"a{L - 1}"], ["b1", f"b{L - 1}"]]
    expected = recording[1].topk(2).weights[1, 0, 1, 0]
    assert float(top.sel(layer=3, batch=1, head=2, query=L - 1, rank=0)) == float(expected)
    received = array(readings["received"], tokens=TOKENS, source_tokens=TOKENS[::-1])
    assert received["key_token"].values.tolist() == [list(text) for text in TOKENS[::-1]]
    assert "query_token" not in received.coords
    weights = array(recording.weights())
    assert float(weights.sel(layer=1, batch=0, head=0, query=1, key=1)) == float(
        recording[0][0, 1, 0, 1]
    )
    with regard.record() as alone:
        torch.nn.functional.scaled_dot_product_attention(*torch.randn(3, H, L, D))
    entropy = array(alone.read(regard.readouts.Entropy())["entropy"], tokens=TOKENS[:1])
    assert entropy.dims == ("layer", "head", "query")
    assert tuple(entropy["query_token"].values) == TOKENS[0]
    with pytest.raises(ValueError, match=r"tokens are of 2 texts of \[6, 6\] .* reaches query 6"):
        array(readings["top_weights"], tokens=tuple(text[:-1] for text in TOKENS))
    with pytest.raises(ValueError, match="the tokens are of 1 texts"):
        array(readings["top_weights"], tokens=TOKENS[:1])


def test_layers_with_other_heads_have_no_common_labels():
    pytest.importorskip("xarray")
    inputs = [torch.randn(2, B, heads, L, D) for heads in (2, 3)]
    reading = recorded(inputs, heads=[-1]).read(regard.readouts.Entropy())["entropy"]
    with pytest.raises(ValueError, match=r"entropy is of other head indices .*\[\(1,\), \(2,\)\]"):
        array(reading)


def test_without_xarray_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    reading = recorded(torch.randn(1, 2, B, H, L, D)).read(regard.readouts.Entropy())["entropy"]
    with pytest.raises(ModuleNotFoundError, match="library xarray: pip install xarray"):
        array(reading)


class Output:
    """An output of inspect-ai: what `reading` makes of it."""

    def __init__(self, model, completion):
        self.model, self.completion, self.metadata = model, completion, None


@pytest.fixture
def inspect_ai(monkeypatch):
    """The module of inspect-ai's model, on stand-ins of its classes."""
    model = types.ModuleType("inspect_ai.model")
    model.ModelAPI = type(
        "ModelAPI", (), {"__init__": lambda self, name: vars(self).update(model_name=name)}
    )
    model.ModelOutput = types.SimpleNamespace(from_content=Output)
    model.GenerateConfig = types.SimpleNamespace
    model.Model = lambda api, config: types.SimpleNamespace(api=api, config=config)
    model.modelapi = lambda name: lambda kind: kind
    monkeypatch.setitem(sys.modules, "inspect_ai", types.ModuleType("inspect_ai"))
    monkeypatch.setitem(sys.modules, "inspect_ai.model", model)
    name = "regard.integrations.inspect_ai"
    yield importlib.import_module(name)
    del sys.modules[name]


def answered(api, *messages, tools=(), **given):
    names = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop_seqs")
    config = types.SimpleNamespace(**{**dict.fromkeys(names), **given})
    said = [types.SimpleNamespace(role="user", text=text) for text in messages]
    try:
        api.generate(said, [*tools], None, config).send(None)
    except StopIteration as end:
        return end.value


def test_inspect_ai_keeps_the_readouts_of_each_sample(inspect_ai):
    own = regard.models.open(None)
    api = inspect_ai.reading(own, regard.readouts.Entropy(), regard.readouts.Mass(0)).api
    text = "Tom had a red kite and a blue drum. Tom wanted the blue"
    output = answered(api, text, temperature=0.0, max_tokens=3)
    assert output.completion.startswith(" drum")
    found = output.metadata["regard"]
    ids = own.tokenizer.encode(text + output.completion)
    assert found["tokens"] == own.tokenizer.tokens(ids)
    assert len(ids) == len(own.tokenizer.encode(text)) + 3
    with torch.no_grad(), regard.record(own) as recording:
        own(torch.tensor(ids))
    for name, axes in {
        "entropy": ["layer", "head", "query"],
        "mass": ["layer", "head", "query"],
    }.items():
        assert found[name]["axes"] == axes
    expected = recording.read(regard.readouts.Entropy())["entropy"].values
    assert torch.equal(torch.tensor(found["entropy"]["values"]), expected)
    for options in ({"tools": ["a tool"]}, {"stop_seqs": ["."]}, {"num_choices": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: this model does not know"):
            answered(api, text, **options)
