"""What a block computes in place of a model's own attention reads each argument as that does."""

import ast
import functools
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from record.models.classes import CASES, randomize
from record.models.inputs import TOKENS
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard.record import RecordError, use_in_transformers

NEAR = 1e-5  # rounding of float32 in two layers, whose activations are near 1
LENGTH = 23
IDS = torch.randint(3, 101, (2, LENGTH), generator=torch.Generator().manual_seed(4))
LOWEST = torch.finfo(torch.float32).min
SEEN = torch.ones(LENGTH, LENGTH).tril().bool().expand(2, 1, -1, -1)
NOBODY = SEEN & (torch.arange(LENGTH)[:, None] != 7)  # the row of query 7 hides every key
MASKS = {
    "bool": SEEN,
    "integers": 3 * SEEN.long(),
    "added": 2.0 * SEEN,
    "lowest": torch.zeros(SEEN.shape).masked_fill(~SEEN, LOWEST),
    "-inf": torch.zeros(SEEN.shape).masked_fill(~SEEN, -torch.inf),
    "a row of the lowest": torch.zeros(SEEN.shape).masked_fill(~NOBODY, LOWEST),
}
NAMES = [
    *("gpt2", "gpt_bigcode", "gpt_neox", "llama", "mistral", "mixtral", "qwen2", "qwen3", "phi"),
    *("phi3", "gemma2", "gemma3", "gpt_oss", "cohere", "granite", "olmo2", "starcoder2"),
    *("smollm3", "llama4", "deepseek_v3", "bert", "roberta", "electra", "albert", "distilbert"),
    *("modernbert", "bert, decoder"),
]


def output(out):
    return out["logits"] if "logits" in out else out["last_hidden_state"]


def compare(model, **arguments):
    """Compare a recording of an eager model with what it computes outside."""
    with torch.no_grad():
        plain = model(**arguments, output_attentions=True)
        with regard.record(model) as recording:
            out = model(**arguments)
        with regard.intervene(model):
            changed = model(**arguments)
    torch.testing.assert_close(output(out), output(plain), rtol=0, atol=NEAR)
    torch.testing.assert_close(output(changed), output(plain), rtol=0, atol=NEAR)
    assert len(recording) == len(plain.attentions)
    for pattern, weights in zip(recording, plain.attentions, strict=True):
        torch.testing.assert_close(pattern.dense(), weights, rtol=0, atol=NEAR)
    return plain


@pytest.mark.each_once
@pytest.mark.parametrize(
    ("name", "mask"),
    [  # of each model two masks, and make thorough all of them
        pytest.param(name, mask, marks=[pytest.mark.thorough] * ((i + j) % 3 > 0))
        for i, name in enumerate(NAMES)
        for j, mask in enumerate(MASKS)
    ],
)
def test_masks_of_the_caller(name, mask):
    model = CASES[name].build("eager")
    arguments = {"input_ids": IDS, "attention_mask": MASKS[mask]}
    if name not in ("bert", "roberta", "electra", "albert", "distilbert", "modernbert"):
        arguments["use_cache"] = False
    plain = compare(model, **arguments)
    # transformers adds True as 1, which hides nothing.
    sees_ahead = plain.attentions[0][:, :, 0, 1:].abs().max() > 1e-3
    assert sees_ahead == (mask in ("bool", "integers", "added"))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_rows_that_eager_makes_nan_are_refused(name):
    model = CASES[name].build("eager")
    mask = torch.zeros(SEEN.shape).masked_fill(~NOBODY, -torch.inf)
    with torch.no_grad():
        assert output(model(IDS, attention_mask=mask)).isnan().any()
        with pytest.raises(RecordError, match="attention_mask has rows of -inf alone"):  # noqa: SIM117
            with regard.record(model):
                model(IDS, attention_mask=mask)


unfused = pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")


@pytest.fixture
def uncompiled(monkeypatch):
    """Compiled for a CPU, flex_attention crashes with a mask that is written down."""

    def attention(query, key, value, training=False, **options):
        return flex_attention(query, key, value, **options)

    module = sys.modules["transformers.integrations.flex_attention"]
    monkeypatch.setattr(module, "compile_friendly_flex_attention", attention)


@pytest.mark.each_once
@unfused
@pytest.mark.parametrize("heads", [1, 6])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_masks_in_place_of_flex_attention(name, mask, heads, uncompiled):
    model = CASES[name].build("flex_attention")
    torch.manual_seed(5)
    given = MASKS[mask].expand(-1, heads, -1, -1).clone()
    given[:, 1:] = given[:, 1:].roll(1, dims=-1)
    arguments = {"input_ids": IDS, "attention_mask": given, "use_cache": False}
    with torch.no_grad():
        plain = model(**arguments)
        with regard.record(model):
            out = model(**arguments)
    torch.testing.assert_close(out.logits, plain.logits, rtol=0, atol=NEAR)


def test_integers_where_regard_is_chosen_for_good():
    use_in_transformers()
    model = CASES["llama"].build("eager")
    model.set_attn_implementation("regard")
    with pytest.raises(RecordError, match=r"attention_mask has dtype torch\.int64; give"):
        model(IDS, attention_mask=MASKS["integers"])


@unfused
@pytest.mark.parametrize("how", ["eager", "flex_attention"])
def test_a_layer_without_a_mask_sees_both_ways_as_outside(how, uncompiled):
    model = CASES["llama"].build(how)
    torch.manual_seed(6)
    hidden = torch.randn(2, 11, model.config.hidden_size)
    places = model.model.rotary_emb(hidden, torch.arange(11)[None])

    def run():
        return model.model.layers[0].self_attn(hidden, places, attention_mask=None)[0]

    with torch.no_grad():
        plain = run()
        with regard.record(model):
            out = run()
    torch.testing.assert_close(out, plain, rtol=0, atol=NEAR)


# Models that choose keys, and say which by another argument where attention is not "eager" by name

SPARSE = {
    **TOKENS,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "max_position_embeddings": 64,
    "kv_lora_rank": 12,
    "q_lora_rank": 14,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "first_k_dense_replace": 1,
    "index_topk": 5,
    "index_head_dim": 8,
    "index_n_heads": 3,
}


@pytest.mark.parametrize("name", ["DeepseekV32", "GlmMoeDsa", "AXK2", "HYV4"])
def test_keys_that_a_model_chooses(name):
    if not hasattr(transformers, f"{name}Config"):
        pytest.skip("this transformers does not have it")
    config = getattr(transformers, f"{name}Config")(**SPARSE)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = randomize(getattr(transformers, f"{name}ForCausalLM")(config)).eval()
    keep = torch.ones_like(IDS)
    keep[1, -4:] = 0
    plain = compare(model, input_ids=IDS, attention_mask=keep, use_cache=False)
    assert (plain.attentions[0][0, :, -1] > 0).sum(-1).max() == SPARSE["index_topk"]


# Implementations that a user registered


def own_forward(module, query, key, value, attention_mask, *, how, scaling=None, **others):
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    return how(query, key, value, 3 * scaling).transpose(1, 2).contiguous(), None


def by_sdpa(query, key, value, scale):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)


def written_out(query, key, value, scale):
    hidden = torch.ones(query.shape[2], key.shape[2]).triu(1).bool()
    return (query @ key.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1) @ value


@pytest.mark.parametrize("how", [by_sdpa, written_out])
def test_what_a_user_registered_is_not_replaced(how, monkeypatch):
    known = transformers.AttentionInterface._global_mapping
    monkeypatch.setitem(known, "own", functools.partial(own_forward, how=how))
    model = CASES["llama"].build("own")
    with torch.no_grad():
        plain = model(IDS)
        if how is by_sdpa:
            with regard.record(model) as recording:
                out = model(IDS)
            assert torch.equal(out.logits, plain.logits)
            layer = model.model.layers[0]
            with regard.record(model.model.layers[0]) as one:
                model(IDS)
            assert torch.equal(one[0].dense(), recording[0].dense())
            assert recording[0].problem.scale == pytest.approx(3 * layer.self_attn.scaling)
        else:
            with pytest.raises(RecordError, match="no attention call"), regard.record(model):
                assert torch.equal(model(IDS).logits, plain.logits)


# All models of transformers

READ = {"dropout", "scaling", "is_causal", "attention_mask", "s_aux", "softcap", "position_bias"}
READ |= {"query", "key", "value", "indices"}
REFUSED = {"sinks", "block_indices", "output_attentions"}
# The mask has the window; the others are those of flash kernels alone.
WITHOUT_INFLUENCE = {"sliding_window", "position_ids", "deterministic"}
WITHOUT_INFLUENCE |= {f"{name}_{side}" for name in ("cu_seq_lens", "max_length") for side in "qk"}


FORWARD = re.compile(
    r"^def \w*eager_attention_forward\(.*?^\)[^\n]*:\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL
)


def calls_of(function, text):
    """The calls of a function in a file, each by itself: parsing whole files takes long."""
    for found in re.finditer(rf"\b{function}\(", text):
        stop, depth = found.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[stop], 0)
            stop += 1
        yield ast.parse(f"_({text[found.end() : stop]}", mode="eval").body


def test_every_argument_that_a_model_passes_is_known():
    passed, reads_mask = {}, {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        text = re.sub(r"#.*", "", path.read_text("utf-8"))
        for call in calls_of("attention_interface", text):
            passed.update(dict.fromkeys((word.arg for word in call.keywords), path.stem))
        for body in FORWARD.findall(text):
            lines = [line.strip() for line in body.splitlines() if "attention_mask" in line]
            reads_mask.update(dict.fromkeys(lines, path.stem))
    del passed[None]  # those of the caller
    assert len(passed) > 10
    assert passed.keys() - READ - REFUSED - WITHOUT_INFLUENCE == set()
    assert reads_mask.keys() == {
        "if attention_mask is not None:",
        "attn_weights = attn_weights + attention_mask",
    }
