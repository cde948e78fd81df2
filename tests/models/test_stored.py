"""Weights in another dtype than their files have: what transformers loads, and in which memory."""

import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from support import small_models

import regard
from regard.gpt import CheckpointError
from regard.models.stored import stored_tensors

from .conftest import SIZES, fast_tokenizer

MOE = {"num_local_experts": 5, "num_experts_per_tok": 2}


def saved(folder, config, kind, **options):
    """Save a random model, and a tokenizer."""
    torch.manual_seed(0)
    model = getattr(hf, kind)(getattr(hf, config)(vocab_size=len(fast_tokenizer()), **SIZES | MOE))
    if "CausalLM" in kind:
        model.generation_config.eos_token_id = [1, 7]
    model.save_pretrained(folder, **options)
    fast_tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "kind", "auto", "options"),
    [
        ("LlamaConfig", "LlamaForCausalLM", "AutoModelForCausalLM", {"max_shard_size": "10KB"}),
        ("MixtralConfig", "MixtralForCausalLM", "AutoModelForCausalLM", {}),
        ("BertConfig", "BertForMaskedLM", "AutoModel", {}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_is_the_model_that_transformers_converts(tmp_path, config, kind, auto, options, dtype):
    folder = saved(tmp_path / "small", config, kind, **options)
    model = regard.models.open(folder, dtype=dtype)
    whole = getattr(hf, auto).from_pretrained(folder, dtype=dtype)
    assert type(model.module) is type(whole)
    ours, theirs = model.module.state_dict(), whole.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        if not name.startswith("pooler."):  # it is in no file
            torch.testing.assert_close(ours[name], weight, rtol=0, atol=0)
    if model.predicts:
        assert model.ends >= {1, 7}
        assert len(sorted(folder.glob("*.safetensors"))) == (1 if not options else 8)


def test_a_tensor_is_read_in_pieces(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("regard.models.stored._PIECE", 52)
    whole = hf.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, stored in stored_tensors(folder).items():
        assert stored.shape == tuple(whole[name].shape)
        assert torch.equal(stored[...].to("cpu", torch.float64), whole[name].double())


@pytest.mark.parametrize("kept", [5, 300, -7])
def test_a_file_that_is_cut_is_refused(tmp_path, folder, kept):
    for file in Path(folder).iterdir():
        data = file.read_bytes()
        whole = file.suffix != ".safetensors"
        (tmp_path / file.name).write_bytes(data if whole else data[:kept])
    with pytest.raises(CheckpointError, match="take one with its weights"):
        regard.models.open(tmp_path, dtype="bfloat16")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("stored", "asked"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_the_file_is_not_in_memory_beside_the_weights(tmp_path, stored, asked):
    shape = {"hidden_size": 131, "intermediate_size": 7, "num_attention_heads": 1}
    rows = 100_003  # of the embedding and of the output: 105 MB in float32
    small_models.save_llama(
        tmp_path, fast_tokenizer(), vocab_size=rows, num_key_value_heads=1, head_dim=6, **shape
    )
    if stored == "bfloat16":
        hf.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=stored).save_pretrained(tmp_path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = status("VmRSS")
    model = regard.models.open(tmp_path, dtype=asked)
    taken = status("VmHWM") - before
    weights = sum(p.numel() * p.element_size() for p in model.module.parameters())
    file = sum(one.stat().st_size for one in tmp_path.glob("*.safetensors"))
    # Besides the weights: pieces of 8 MB on several threads, and what transformers itself needs.
    assert taken < weights + min(0.6 * file, 30e6)


def status(name):
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024
