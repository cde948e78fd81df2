"""GPT-2 in the layout of `transformers`, both ways, against `transformers` itself."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch
import transformers
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, GPT2Model

from regard.gpt import (
    GPT,
    BPETokenizer,
    CharTokenizer,
    CheckpointError,
    GPTConfig,
    Sampling,
    generate,
    load,
    read_gpt2,
    write_gpt2,
)
from regard.gpt.gpt2 import read_gpt2_tokenizer

V = 269
SIZES = {"vocab_size": V, "n_positions": 31, "n_layer": 3, "n_head": 5, "n_embd": 35}
ENDS = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    config = GPT2Config(**SIZES, **ENDS, n_inner=41, layer_norm_epsilon=3e-3, **NO_DROPOUT)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # their first weights are tiny, their first biases zeros
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture
def folder(theirs, tmp_path):
    theirs.save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def ids():
    return torch.randint(V, (2, 23), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tokenizer():
    text = ["the cat sat on the mat, the cat sat on the hat"] * 3
    made = BPETokenizer.train(text, vocab_size=V)
    assert made.vocab_size == V
    return made


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids).logits


def edit(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(folder, change):
    path = folder / "model.safetensors"
    weights = change(safetensors.torch.load_file(path))
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})


def test_logits_are_theirs_and_greedy_tokens_too(theirs, folder, ids):
    ours = read_gpt2(folder)
    assert ours.config.hidden == 41
    # float32 rounds at 6e-8; the largest logits stand at about 20.
    torch.testing.assert_close(ours(ids), logits_of(theirs, ids), rtol=1e-4, atol=1e-4)
    greedy = theirs.generate(
        ids[:, :3], attention_mask=torch.ones_like(ids[:, :3]), max_new_tokens=20, do_sample=False
    )
    assert generate(ours, ids[:, :3], tokens=20, sampling=Sampling(temperature=0.0)).equal(greedy)
    theirs.double()
    try:
        expected = logits_of(theirs, ids)
    finally:
        theirs.float()
    torch.testing.assert_close(ours.double()(ids), expected, rtol=1e-10, atol=1e-10)


def test_unequal_prompts_continue_as_theirs(theirs, folder, ids):
    ours = read_gpt2(folder)
    prompts = [ids[0, :9], ids[1, :4]]
    got = generate(ours, prompts, tokens=12, sampling=Sampling(temperature=0.0))
    for prompt, out in zip(prompts, got, strict=True):
        expected = theirs.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            max_new_tokens=12,
            do_sample=False,
        )
        assert out.equal(expected[0])


def test_transformers_reads_our_files(theirs, folder, ids, tokenizer, tmp_path):
    ours = read_gpt2(folder)
    write_gpt2(ours, tmp_path / "back", tokenizer)
    back, info = GPT2LMHeadModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert logits_of(back.eval(), ids).equal(logits_of(theirs, ids))
    for name, weight in theirs.state_dict().items():
        assert back.state_dict()[name].equal(weight), name
    text = "the cat sat on  a hát"
    read = AutoTokenizer.from_pretrained(tmp_path / "back")
    assert read(text)["input_ids"] == tokenizer.encode(text)
    assert read.decode(tokenizer.encode(text)) == text


def test_one_of_ours_is_read_by_them(ids, tmp_path):
    torch.manual_seed(2)
    ours = GPT(
        GPTConfig(
            vocab_size=V, context=31, layers=2, heads=3, dim=12, dropout=0.2, initial_std=0.03
        )
    ).eval()
    write_gpt2(ours, tmp_path)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(ours(ids), logits_of(theirs, ids), rtol=1e-4, atol=1e-5)
    assert theirs.config.attn_pdrop == 0.2
    assert theirs.config.initializer_range == 0.03
    again = read_gpt2(tmp_path)
    assert again.config == ours.config
    assert again(ids).equal(ours(ids))


def test_several_files_with_an_index_are_one_model(theirs, ids, tmp_path):
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ours = read_gpt2(str(tmp_path))
    torch.testing.assert_close(ours(ids), logits_of(theirs, ids), rtol=1e-4, atol=1e-4)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"]["transformer.ln_f.bias"]
    index.write_text(json.dumps(content))
    with pytest.raises(
        CheckpointError, match=r"do not agree on the weight transformer\.ln_f\.bias"
    ):
        read_gpt2(tmp_path)
    content["weight_map"]["transformer.ln_f.bias"] = "../secret.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"'\.\./secret\.safetensors' is not a file name"):
        read_gpt2(tmp_path)
    content["weight_map"]["transformer.ln_f.bias"] = "gone.safetensors"
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors, which .* names, is missing"):
        read_gpt2(tmp_path)


def test_old_files_are_read_too(theirs, folder, ids):
    """Without the prefix, with the mask as a buffer, with the tied matrix a second time."""

    def old(weights):
        plain = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        for layer in range(3):
            plain[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 31, 31).tril()
            plain[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        return plain | {"lm_head.weight": plain["wte.weight"].clone()}

    rewrite(folder, old)
    logits = read_gpt2(folder)(ids)
    torch.testing.assert_close(logits, logits_of(theirs, ids), rtol=1e-4, atol=1e-4)


def test_a_body_without_the_language_head_and_in_half_precision_is_read(theirs, tmp_path, ids):
    body = GPT2Model(theirs.config)
    body.load_state_dict(theirs.transformer.state_dict())
    body.bfloat16().save_pretrained(tmp_path)
    ours = read_gpt2(tmp_path)
    assert ours.wte.weight.dtype == torch.float32
    assert ours.wte.weight.equal(theirs.transformer.wte.weight.bfloat16().float())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type 'llama'; only gpt2"),
        ({"activation_function": "relu"}, "activation_function='relu', which is not supported"),
        ({"activation_function": "gelu"}, "activation_function='gelu'"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ({"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn=True"),
        ({"scale_attn_weights": False}, "scale_attn_weights=False"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
        ({"attn_pdrop": 0.3}, r"resid_pdrop=0\.0, embd_pdrop=0\.0, attn_pdrop=0\.3"),
        ({"n_head": 4}, "does not describe a GPT-2: .*dim is 35"),
        ({"n_layer": 4}, "has 3 layers, and its config.json says n_layer=4"),
        ({"n_embd": "35"}, "GPTConfig.dim is '35'"),
        ({"n_inner": 42}, r"mlp\.c_fc\.\w+ of shape .* requires"),
        ({"vocab_size": 300}, r"wte\.weight of shape \(269, 35\) .* requires \(300, 35\)"),
    ],
)
def test_unsupported_options_are_refused_by_name(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        read_gpt2(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: w | {"transformer.h.0.attn.rel": torch.zeros(3)},
            r"holds the weight .*attn\.rel",
        ),
        (lambda w: w | {"ln_f.bias": torch.zeros(35)}, "ln_f.bias.* a second time"),
        (lambda w: w | {"lm_head.weight": torch.zeros(V, 35)}, "lm_head.weight that differs"),
        (lambda w: {n: t for n, t in w.items() if "1.mlp.c_fc.b" not in n}, r"lacks .*h\.1\.mlp"),
        (
            lambda w: w | {"transformer.h.1.attn.c_attn.weight": torch.zeros(105, 35)},
            r"c_attn\.weight of shape \(35, 105\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        read_gpt2(folder)


def test_damaged_and_missing_files_are_named(folder, tmp_path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        read_gpt2(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"weights pickled .* convert it once"):
        read_gpt2(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        read_gpt2(folder)
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        read_gpt2(folder)


# Tokenizers


def test_a_tokenizer_of_two_files_encodes_as_theirs(tmp_path):
    trained = BPETokenizer.train(["the cat sat on the mat"] * 3, vocab_size=V, end=True)
    inner = json.loads(trained.to_json())
    vocabulary = {
        **inner["model"]["vocab"],
        **{t["content"]: t["id"] for t in inner["added_tokens"]},
    }
    merges = [" ".join(pair) for pair in inner["model"]["merges"]]
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    text = "the cat, 日本 <|endoftext|>  the"
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    ours = read_gpt2_tokenizer(tmp_path)
    assert ours.encode(text) == theirs(text)["input_ids"] == trained.encode(text)
    assert ours.decode(ours.encode(text)) == text
    assert ours.vocab_size == trained.vocab_size
    (tmp_path / "merges.txt").write_text("nonsense")
    with pytest.raises(
        CheckpointError, match=r"has a tokenizer that can't be used: .* make no BPE"
    ):
        read_gpt2_tokenizer(tmp_path)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer: neither tokenizer\.json"):
        read_gpt2_tokenizer(tmp_path)


def test_load_takes_their_folder_too(theirs, folder, ids, tokenizer):
    tokenizer.save(folder)
    model, read = load(folder)
    torch.testing.assert_close(model(ids), logits_of(theirs, ids), rtol=1e-4, atol=1e-4)
    assert read.encode("the cat") == tokenizer.encode("the cat")
    BPETokenizer.train(["x"], vocab_size=256).save(folder)
    with pytest.raises(CheckpointError, match=r"tokenizer has 256 tokens .* vocab_size=269"):
        load(folder)


# Writing


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"positions": "rotary"}, "positions is 'rotary', and a GPT-2 .* has 'learned'"),
        ({"norm": "rms"}, "norm is 'rms'"),
        ({"mlp": "swiglu"}, "mlp is 'swiglu'"),
        ({"groups": 1}, "groups is 1"),
        ({"window": 3}, "window is 3"),
        ({"qk_norm": True}, "qk_norm is True"),
        ({"bias": False}, "bias is False"),
    ],
)
def test_options_that_gpt2_lacks_are_not_written(option, message, tmp_path):
    model = GPT(GPTConfig(vocab_size=V, context=5, layers=1, heads=2, dim=8, **option))
    with pytest.raises(ValueError, match=rf"GPTConfig\.{message}"):
        write_gpt2(model, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_another_models_tokenizer_is_not_written(tmp_path, tokenizer):
    model = GPT(GPTConfig(vocab_size=31, context=5, layers=1, heads=2, dim=8))
    with pytest.raises(
        ValueError, match="tokenizer has 269 tokens and the model's vocabulary is 31"
    ):
        write_gpt2(model, tmp_path, tokenizer)
    with pytest.raises(
        TypeError, match="tokenizer is a CharTokenizer, which transformers can't read"
    ):
        write_gpt2(model, tmp_path, CharTokenizer("abc"))
    assert not list(tmp_path.iterdir())
