"""Which layer a call is of, and where its queries and keys stand in the text."""

import itertools

import pytest
import torch
import transformers as hf
from record.models.classes import CASES
from record.models.inputs import GROUPED
from support.changed_attention import ChangedAttention, edit
from support.edits import changed
from support.interception import Block, Stack
from support.written_models import in_torch, transformers_model
from torch import nn

import regard
from regard.gpt import GPT, GPTConfig

RUNS = [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa")]


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def text(length, batch=1):
    torch.manual_seed(length)
    return torch.randint(3, 101, (batch, length))


def read(model, ids, cache):
    with torch.no_grad():
        return model(ids, past_key_values=cache).logits


@pytest.mark.parametrize(
    ("name", "how"), [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa")]
)
def test_texts_that_are_read_in_turn_each_with_a_cache(name, how):
    edits = [edit("knock_out", layers=1, keys=slice(5, 8), queries=slice(7, None), heads=[0, 1])]
    written = transformers_model(CASES[name], ChangedAttention(edits))
    model, texts, first = CASES[name].build(how), [text(11), text(14)], (7, 10)

    def run():
        caches = [hf.DynamicCache(config=model.config) for _ in texts]
        parts = [
            [read(model, ids[:, :count], cache)]
            for ids, cache, count in zip(texts, caches, first, strict=True)
        ]
        for step in range(4):
            for out, ids, cache, count in zip(parts, texts, caches, first, strict=True):
                out.append(read(model, ids[:, count + step : count + step + 1], cache))
        return [torch.cat(out, 1) for out in parts]

    for actual, ids in zip(changed(model, edits, run), texts, strict=True):
        close(actual, written(ids).logits.detach())


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_change_stated_while_a_text_is_read(name):
    ids, model = text(12), CASES[name].build("sdpa")
    edits = [edit("knock_out", layers=1, keys=8, queries=slice(9, None))]
    written = transformers_model(CASES[name], ChangedAttention(edits))
    cache = hf.DynamicCache(config=model.config)
    with regard.intervene(model) as change:
        parts = [read(model, ids[:, :9], cache)]
        edits[0].state(change)
        parts += [read(model, ids[:, i : i + 1], cache) for i in range(9, 12)]
    close(torch.cat(parts, 1), written(ids).logits.detach())


@pytest.mark.parametrize("number", [3, slice(0, 9), slice(-3, 9), [-1, 3]])
def test_numbers_are_refused_where_a_rolling_cache_was_full_before_the_block(number):
    """Its first call looks like that of a cache which holds all of the text."""
    ids, model = text(14), CASES["mistral"].build("sdpa")
    cache = hf.DynamicCache(config=model.config)
    read(model, ids[:, :9], cache)
    with regard.intervene(model) as change:
        change.knock_out(keys=number)
        read(model, ids[:, 9:10], cache)
        with pytest.raises(regard.Error, match=r"^keys=.*a rolling cache was full"):
            read(model, ids[:, 10:11], cache)


@pytest.mark.parametrize("number", [-1, slice(-3, -1)])
def test_numbers_from_the_end_need_no_count_of_dropped_keys(number):
    ids, model = text(14), CASES["mistral"].build("sdpa")
    edits = [edit("steer", keys=number, queries=slice(-1, None), by=1.5)]
    elsewhere, here = (hf.DynamicCache(config=model.config) for _ in range(2))
    read(model, ids[:, :9], elsewhere)
    steps = [ids[:, i : i + 1] for i in range(9, 14)]
    changes = changed(model, edits, lambda: [read(model, one, elsewhere) for one in steps])
    with regard.intervene(model) as change:
        read(model, ids[:, :9], here)
        edits[0].state(change)
        expected = [read(model, one, here) for one in steps]
    close(torch.cat(changes, 1), torch.cat(expected, 1), atol=0)


def test_a_text_in_chunks_and_another_after_it():
    edits = [
        edit("knock_out", layers=1, keys=slice(2, 5), queries=slice(4, 9)),
        edit("steer", layers=0, keys=[0, 6], by=1.0, heads=2),
    ]
    model = CASES["llama"].build("eager")
    written = transformers_model(CASES["llama"], ChangedAttention(edits))

    def chunks(ids):
        cache, edges = hf.DynamicCache(), itertools.pairwise((0, 5, 8, 9, ids.shape[1]))
        return torch.cat([read(model, ids[:, a:b], cache) for a, b in edges], 1)

    texts = text(11, 2), text(10, 2)
    actual = changed(model, edits, lambda: [chunks(ids) for ids in texts])
    for logits, ids in zip(actual, texts, strict=True):
        close(logits, written(ids).logits.detach())


@pytest.mark.parametrize("how", CASES["t5"].implementations)
def test_a_decoder_of_one_token_that_runs_again(how):
    model, source, start = CASES["t5"].build(how), text(7, 2), torch.zeros(2, 1).long()
    edits = [edit("knock_out", kind="cross", layers=0, queries=0, keys=[1, 2])]
    written = transformers_model(CASES["t5"], ChangedAttention(edits))
    expected = written(source, decoder_input_ids=start).logits

    def run():
        return [model(source, decoder_input_ids=start).logits for _ in range(3)]

    for actual in changed(model, edits, run):
        close(actual, expected)


def test_a_module_that_is_called_again_is_a_layer_of_its_own():
    block, x = Block(), torch.randn(2, 7, 12)
    model = nn.Sequential(block, block, block)
    edits = [edit("knock_out", layers=1, keys=[1, 2]), edit("ablate", layers=2, heads=1)]
    with in_torch(ChangedAttention(edits)):
        expected = model(x)
    for _ in range(2):
        close(changed(model, edits, lambda: model(x)), expected)


def test_a_part_of_a_model_counts_its_own_layers():
    model, x = Stack(3), torch.randn(2, 7, 12)
    with in_torch(ChangedAttention([edit("ablate", layers=1, heads=1)])):
        expected = model(x)
    with regard.intervene(model.h[1]) as change:
        change.ablate(layers=0, heads=1)
        close(model(x), expected)


@pytest.mark.parametrize("layer", [0, 1])
def test_a_layer_that_attends_in_two_halves_of_its_values(layer):
    config = hf.DiffLlamaConfig(**GROUPED)
    config._attn_implementation = "sdpa"
    model, ids = hf.DiffLlamaForCausalLM(config).eval(), text(9, 2)
    edits = [
        edit("knock_out", layers=layer, keys=[1, 2], heads=[0, 3]),
        edit("steer", layers=layer, keys=3, by=1.0),
    ]
    with in_torch(ChangedAttention(edits), [("self", n) for n in (0, 0, 1, 1)]):
        expected = model(ids).logits
    close(changed(model, edits, lambda: model(ids).logits), expected)


def test_torch_transformer_with_each_kind():
    model = nn.Transformer(24, 6, 2, 2, 16, 0.0, batch_first=True).eval()
    source, target = torch.randn(2, 2, 7, 24)
    edits = [
        edit("knock_out", kind="cross", layers=1, keys=[1]),
        edit("ablate", kind="encoder", layers=1, heads=2),
        edit("steer", layers=0, keys=1, by=1.0),
    ]
    decoder = [(kind, layer) for layer in range(2) for kind in ("self", "cross")]
    with in_torch(ChangedAttention(edits), [("encoder", 0), ("encoder", 1), *decoder]):
        expected = model(source, target).detach()
    for trained in (True, False):
        with torch.set_grad_enabled(trained):
            actual = changed(model, edits, lambda: model(source, target))
        close(actual.detach(), expected)


def test_a_text_without_a_batch_and_a_batch_without_texts():
    model = GPT(GPTConfig(vocab_size=11, context=16, layers=2, heads=2, dim=12)).eval()
    ids = torch.randint(0, 11, (5,))
    edits = [
        edit("knock_out", layers=1, keys=[1, 2]),
        edit("ablate", layers=0, heads=1, by="mean"),
    ]
    alone, batch = changed(model, edits, lambda: (model(ids), model(ids[None])))
    assert torch.equal(alone, batch[0])
    with regard.intervene(model) as change:
        change.ablate(layers=0, heads=1, by="mean")
        assert model(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5, 11)


def test_beams_share_their_numbers():
    model, ids = CASES["gpt2"].build("sdpa"), text(6)
    edits = [edit("knock_out", layers=1, keys=[1, 2, 7]), edit("ablate", layers=0, heads=1)]
    options = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    cached, again = (
        changed(model, edits, lambda use=use: model.generate(ids, use_cache=use, **options))
        for use in (True, False)
    )
    assert torch.equal(cached, again)
