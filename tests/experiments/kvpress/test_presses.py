"""The presses beside those of kvpress, which score by eager attention, at 2,048 tokens.

Run by ``make kvpress``: kvpress needs an older transformers than the rest of the tests. Attention
through flash-attn needs a GPU: a stand-in has its place here, which makes masks as transformers
does for flash-attn, and computes with SDPA. The wrapper that kvpress puts around flex_attention
passes an argument in the wrong place; so flex_attention is registered by a name of its own.
"""

import math

import pytest
import torch

pytest.importorskip("kvpress", reason="in an environment of its own: make kvpress")

import kvpress
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.masking_utils import flash_attention_mask, flex_attention_mask

import regard
from regard_experiments.kv import kvpress as ours

TOKENS, HEADS, KEY_HEADS, SIZE = 2048, 6, 2, 10
RATIO = 0.6
SIZES = {
    "vocab_size": 97,
    "hidden_size": 52,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": SIZE,
    "max_position_embeddings": 2 * TOKENS,
    "pad_token_id": 0,
}
PRESSES = {
    "ObservedAttentionPress": {},
    "SnapKVPress": {"window_size": 37, "kernel_size": 7},
    "TOVAPress": {},
}


def of_kernel(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **_):
    """What a flash kernel computes of a text without padding: the last query sees all keys."""
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    context = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=visible.tril(key.shape[2] - query.shape[2]),
        scale=scaling,
        enable_gqa=True,
    )
    return context.transpose(1, 2), None


def of_flex(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **_):
    return flex_attention_forward(module, query, key, value, attention_mask, scaling=scaling)


@pytest.fixture(scope="module", autouse=True)
def implementations():
    for name, function, mask in (
        ("stand_in_of_a_kernel", of_kernel, flash_attention_mask),
        ("flex_by_itself", of_flex, flex_attention_mask),
    ):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, mask)


def make(kind="Llama", **options):
    torch.manual_seed(5)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **options)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # heads that look somewhere
            if parameter.ndim == 2:
                parameter.normal_(std=0.35)
    return model


IDS = torch.randint(1, 97, (1, TOKENS), generator=torch.Generator().manual_seed(3))


def scores(press, model, implementation):
    """The scores of each layer, and the cache that the press leaves."""
    model.set_attn_implementation(implementation)
    cache, layers = DynamicCache(), []
    score = press.score

    def observed(*arguments):
        layers.append(score(*arguments))
        return layers[-1]

    press.score = observed
    with torch.no_grad(), press(model):
        model.model(IDS, past_key_values=cache)
    return torch.stack(layers), cache


def kept(scores):
    count = int(TOKENS * (1 - RATIO))
    return scores.topk(count, dim=-1).indices.sort(dim=-1).values


def compare(name, model, implementation):
    options = PRESSES[name]
    theirs, _ = scores(getattr(kvpress, name)(RATIO, **options), model, "eager")
    found, cache = scores(getattr(ours, name)(RATIO, **options), model, implementation)
    assert torch.equal(kept(found), kept(theirs))
    torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-7)  # float32, 2,048 terms
    assert {layer.keys.shape[2] for layer in cache.layers} == {int(TOKENS * (1 - RATIO))}


@pytest.mark.parametrize(
    "implementation", ["sdpa", "eager", "stand_in_of_a_kernel", "flex_by_itself"]
)
@pytest.mark.parametrize("name", PRESSES)
def test_the_kept_positions_are_those_of_eager_attention(name, implementation):
    compare(name, make(), implementation)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Qwen3", {}),  # normalises queries and keys
        ("Mistral", {"sliding_window": 1201}),  # more than are kept: keys beyond it are all alike
        ("Phi3", {"sliding_window": None}),  # one projection for query, key and value
    ],
)
@pytest.mark.parametrize("name", PRESSES)
def test_other_models(name, kind, options):
    compare(name, make(kind, **options), "sdpa")


def hidden_keys(model):
    """The keys that attention is to hide: of each layer, batch entry, key head and position."""
    indices = [layer.self_attn.masked_key_indices for layer in model.model.layers]
    return [sorted(torch.stack(each, dim=-1).tolist()) for each in indices]


@pytest.mark.parametrize(
    ("normalization", "implementation"),
    [(False, "sdpa"), (False, "stand_in_of_a_kernel"), (False, "flex_by_itself"), (True, "sdpa")],
)
def test_kvzip_hides_what_kvpress_hides(normalization, implementation, tmp_path):
    words = {chr(place): place - 32 for place in range(32, 128)} | {"\n": 96}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    model, found = make(), []
    model.config._name_or_path = str(tmp_path)
    for presses in (kvpress, ours):
        model.set_attn_implementation("sdpa" if presses is kvpress else implementation)
        press = presses.KVzipPress(RATIO, chunk_size=799, kvzip_plus_normalization=normalization)
        with torch.no_grad(), press(model):
            model.model(input_ids=IDS, past_key_values=DynamicCache())
        found.append(hidden_keys(model))
    assert found[0] == found[1]
    assert sum(map(len, found[0])) == math.floor(RATIO * 2 * KEY_HEADS * TOKENS)


def test_a_press_of_kvpress_takes_one_of_these():
    model, found = make(), []
    for presses in (kvpress, ours):
        press = kvpress.AdaKVPress(presses.SnapKVPress(RATIO, window_size=37))
        with torch.no_grad(), press(model):
            model.model(IDS, past_key_values=DynamicCache())
        found.append(hidden_keys(model))
    assert found[0] == found[1]


def test_a_report_says_what_a_press_did_to_the_first_layer():
    model, question = make(), torch.randint(1, 97, (1, 3))
    places = torch.arange(TOKENS, TOKENS + 3)[None]
    found, caches = scores(ours.SnapKVPress(RATIO), model, "sdpa")
    full_cache = DynamicCache()
    with torch.no_grad():
        model.model(IDS, past_key_values=full_cache)
    recordings = []
    for cache in (full_cache, caches):
        with torch.no_grad(), regard.record(model) as recording:
            model.model(question, past_key_values=cache, position_ids=places)
        recordings.append(recording)
    report = regard.lens.fidelity(*recordings, "tv")
    own = torch.arange(TOKENS, TOKENS + 3).expand(1, KEY_HEADS, 3)
    left = torch.cat((kept(found)[0], own), dim=-1).repeat_interleave(HEADS // KEY_HEADS, dim=1)[0]
    for head in (head for head in report if head.layer == 0):  # whose queries are the same
        lost = 1 - recordings[0][0][0, head.head].dense()[:, left[head.head]].sum(-1)
        assert head.mean == pytest.approx(float(lost.mean()), abs=1e-5)


def test_what_would_be_wrong_is_refused():
    model = make()
    chunked = kvpress.ChunkPress(ours.SnapKVPress(RATIO, window_size=37), chunk_length=512)
    with torch.no_grad(), chunked(model), pytest.raises(ValueError, match="not in chunks"):
        model.model(IDS, past_key_values=DynamicCache())
    for press in (ours.SnapKVPress(RATIO), ours.TOVAPress(RATIO)):
        after = kvpress.ComposedPress([kvpress.KnormPress(0.5), press])
        with torch.no_grad(), after(model), pytest.raises(ValueError, match="evicted"):
            model.model(IDS, past_key_values=DynamicCache())
