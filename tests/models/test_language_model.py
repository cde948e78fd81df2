"""A language model: what it reads, says and draws, beside transformers' own answers."""

import dataclasses
import weakref

import pytest
import torch
import transformers as hf

import regard
from regard.gpt import Sampling
from regard.models.places import find_places, run_once
from regard.models.proof import prove
from regard.record import RecordError

from .conftest import fast_tokenizer, llama

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def model(folder):
    return regard.models.open(folder)


def test_a_prompt_has_the_tokens_and_characters_of_the_text(model):
    prompt = model.read("the cat mat")
    assert prompt.ids == tuple(fast_tokenizer()("the cat mat", add_special_tokens=False).input_ids)
    assert "".join(prompt.text[slice(*span)] for span in prompt.offsets) == "the cat mat"
    assert not any(prompt.added)


def test_a_message_stands_in_the_template_and_only_it_is_the_user_s(model):
    prompt = model.read(" the cat\n", chat=True, system="be kind")
    rendered = "<system>be kind<user> the cat\n<assistant>"
    assert prompt.text == rendered
    assert list(prompt.ids) == fast_tokenizer()(rendered, add_special_tokens=False).input_ids
    roles = {role: prompt.characters(span) for role, span in prompt.roles}
    assert roles["user"].strip() == "the cat"
    assert "be kind" in roles["system"]
    own = [not added for added in prompt.added]
    spans = dict(prompt.roles)
    assert own == [
        any(first <= k < stop for first, stop in spans.values()) for k in range(len(prompt))
    ]


def test_tokens_that_the_tokenizer_adds_are_marked_and_can_be_left_out(encoder):
    from tokenizers import processors

    tokenizer = fast_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    model = regard.models.LanguageModel(llama(tokenizer), tokenizer, name="a model")
    prompt = model.read("the cat")
    assert (prompt.ids[0], prompt.ids[-1]) == (0, 1)
    assert prompt.added == (True, *[False] * (len(prompt) - 2), True)
    assert model.read("the cat", special=False).ids == prompt.ids[1:-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"chat": True}, "has no chat template"), ({"system": "x"}, "system goes with chat=True")],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        regard.models.open().read("the cat", **options)


def test_greedy_tokens_are_those_of_transformers(model):
    ids = model.read("the cat sat on").ids
    tokens = 17
    expected = model.module.generate(
        torch.tensor([ids]), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )[0, len(ids) :].tolist()
    assert list(model.stream(ids, tokens=tokens, sampling=GREEDY)) == expected


def test_drawing_ends_at_the_end_of_the_answer_and_of_the_context(model):
    ids = model.read("the cat").ids
    many = list(model.stream(ids, tokens=500, sampling=Sampling(seed=3)))
    assert len(ids) + len(many) <= model.context
    ended = regard.models.open(model.module.name_or_path)
    ended.module.generation_config.eos_token_id = [many[4]]
    drawn = list(ended.stream(ids, tokens=500, sampling=Sampling(seed=3)))
    assert drawn == many[: many.index(many[4]) + 1]


def test_text_is_drawn_piece_by_piece_and_ends_before_a_stop_string(model):
    ids = model.read("the cat sat on").ids
    whole = "".join(model.stream_text(ids, tokens=40, sampling=Sampling(seed=1)))
    drawn = list(model.stream(ids, tokens=40, sampling=Sampling(seed=1)))
    inner = [token for token in drawn if token not in model.ends]
    assert whole == model.tokenizer.decode([*ids, *inner])[len("the cat sat on") :]
    stop = whole[7:9]
    pieces = model.stream_text(ids, tokens=40, sampling=Sampling(seed=1), stop=[stop])
    assert "".join(pieces) == whole[: whole.index(stop)]


def test_the_space_that_begins_a_drawn_text_is_kept():
    """A SentencePiece decoder strips it from what it decodes alone."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = {"▁the": 0, "▁cat": 1, "s": 2, "<unk>": 3}
    own = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    own.pre_tokenizer, own.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=own)
    model = regard.models.LanguageModel(
        llama(tokenizer, eos_token_id=None), tokenizer, name="a model"
    )
    model.stream = lambda *_, **__: iter([1, 2, 0])
    assert "".join(model.stream_text([0], tokens=3)) == " cats the"


def test_a_run_keeps_weights_and_values_and_the_logits_of_one_token(model):
    ids = torch.tensor(model.read("the cat sat on the mat").ids)
    done = model.record(ids, position=2)
    output = model.module(ids[None], output_attentions=False)
    torch.testing.assert_close(done.logits, output.logits[0, 2])
    values = done.values_of(1)
    assert len(values) == len(done.layers[1].heads) == 6
    assert values[0] is not values[1]
    assert torch.equal(values[0], values[2])  # one of two groups
    assert not torch.equal(values[2], values[3])
    contexts = []
    hook = model.module.model.layers[1].self_attn.o_proj.register_forward_pre_hook(
        lambda _, inputs: contexts.append(inputs[0][0])
    )
    model(ids)
    hook.remove()
    weights = done.layers[1].pattern.dense()[0]
    mine = torch.cat([weight @ value for weight, value in zip(weights, values, strict=True)], -1)
    torch.testing.assert_close(mine, contexts[0])


def test_it_stands_in_place_of_a_module(model):
    text = "the cat sat on the"
    with regard.record(model, tokens=model.tokenizer) as recording:
        model(text)
    assert recording.layers[2].name == "model.layers.2.self_attn"
    assert "".join(recording.tokens[0]) == text
    likeliest = int(model.record(torch.tensor(model.read(text).ids)).logits.argmax())
    (target,) = model.tokenizer.tokens([likeliest])
    effects = regard.lens.effects(model, text, target)
    ids = torch.tensor(model.read(text).ids)
    again = regard.lens.effects(
        model.module, ids, regard.lens.LogProbability(model.token(target)), over="heads"
    )
    assert torch.equal(effects.values, again.values)
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=4)
        changed = model(text)[-1].detach().log_softmax(-1)[model.token(target)]
    assert float(changed) - effects.unchanged == pytest.approx(
        float(effects.values[1, 4]), abs=1e-5
    )
    with pytest.raises(ValueError, match="must be one token"):
        regard.lens.effects(model, text, "the cat sat")


def test_measured_effects_are_those_of_ablation_in_any_order(model):
    text = "the cat sat on the"
    estimated = regard.lens.effects(model, text, " cat", method="gradient")
    true = regard.lens.effects(model, text, " cat")
    places = [(2, 5), (0, 1), (1, 3)]
    expected = torch.stack([true.values[place] for place in places])
    torch.testing.assert_close(estimated.measure(places), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="those of ablation"):
        true.measure(places)


def wrong(run, places, module):
    return {check.name: check for check in prove(module, run, places)}


def test_each_equation_fails_for_a_wrong_place_and_says_where(model):
    module = model.module
    run = run_once(module, {"input_ids": torch.arange(7)[None] * 11})
    places = find_places(module, run, {})
    assert all(check.holds for check in wrong(run, places, module).values())
    first, *others = places.blocks

    def changed(**fields):
        blocks = (dataclasses.replace(first, **fields), *others)
        return wrong(run, dataclasses.replace(places, blocks=blocks), module)

    without_norm = wrong(run, dataclasses.replace(places, norm=None), module)
    assert [check.holds for check in without_norm.values()] == [True, False, True]
    other_mlp = changed(mlp_adds=f"{first.name}.post_attention_layernorm")
    assert not other_mlp["residuals"].holds
    assert first.name in other_mlp["residuals"].why
    assert not changed(scale=2.0)["residuals"].holds
    adds = changed(attention_adds=first.mlp_adds, mlp_adds=first.attention_adds)
    assert adds["residuals"].holds
    assert not adds["attention"].holds
    twice = dataclasses.replace(places, scale=2.0)
    assert not wrong(run, twice, module)["logits"].holds


def test_a_model_whose_weights_are_not_those_it_used_is_found_out(model, monkeypatch):
    module = model.module
    run = run_once(module, {"input_ids": torch.arange(7)[None] * 11})
    places = find_places(module, run, {})
    layer = run.recording.layers[1]
    monkeypatch.setattr(
        type(layer.pattern), "dense", lambda self, **_: torch.full((1, 6, 7, 7), 1 / 7)
    )
    assert not wrong(run, places, module)["attention"].holds


def test_a_text_is_recorded_if_it_fits_into_a_quarter_of_the_free_memory(model, monkeypatch):
    ids = torch.tensor(model.read("the cat sat on the mat").ids)
    each = 3 * 3 * 24 * 4  # queries, keys, values × layers × width × bytes
    free = 4 * each * len(ids)
    monkeypatch.setattr("regard.models.language_model.free_memory", lambda: free - 1)
    with pytest.raises(RecordError, match=f"of these {len(ids)} tokens would take up to .* free: "):
        model.record(ids)
    monkeypatch.setattr("regard.models.language_model.free_memory", lambda: free)
    assert model.record(ids).logits is not None


def test_layers_that_are_read_while_the_model_runs_are_those_that_a_recording_keeps(model):
    ids = torch.tensor(model.read("the cat sat on the mat").ids)
    kept = model.record(ids, position=3)
    results, logits = model.read_layers(ids, lambda layer: layer.pattern.dense(), position=3)
    assert torch.equal(logits, kept.logits)
    for (layer, weights), whole in zip(results, kept.layers, strict=True):
        assert (layer.index, layer.name, layer.heads) == (whole.index, whole.name, whole.heads)
        assert torch.equal(weights, whole.pattern.dense())
        with pytest.raises(RecordError, match="read while the model ran, and not kept"):
            _ = layer.pattern
    one = model.record(ids, layers=1)
    (layer,), (value,) = one.layers, one.values
    assert torch.equal(layer.pattern.dense(), kept.layers[1].pattern.dense())
    assert torch.equal(value, kept.values[1])


def test_a_layer_s_queries_and_keys_are_released_when_it_was_read(model):
    references = []

    def read(layer):
        problem = layer.pattern.problem
        references.append([weakref.ref(problem.query), weakref.ref(problem.key)])
        return [one() is None for earlier in references[:-1] for one in earlier]

    ids = torch.tensor(model.read("the cat sat on the mat").ids)
    results, _ = model.read_layers(ids, read)
    assert [gone for _, gone in results] == [[], [True] * 2, [True] * 4]


def test_a_hybrid_says_which_blocks_have_no_weights_and_a_failing_equation_is_named():
    import architectures

    hybrid = architectures.build("qwen3_next", "causal")
    model = regard.models.LanguageModel(hybrid, fast_tokenizer(), name="a hybrid")
    attending = sum(block.attention is not None for block in model.places.blocks)
    assert 0 < attending < len(model.places.blocks)
    (said,) = model.remarks
    assert said.startswith(f"{attending} of its {len(model.places.blocks)} blocks have weights")
    cohere = architectures.build("cohere", "causal")
    wrong = regard.models.LanguageModel(
        cohere, fast_tokenizer(), name="wrong", places={"norm": None}
    )
    assert [one.split(":")[0] for one in wrong.remarks] == ["logits"]
