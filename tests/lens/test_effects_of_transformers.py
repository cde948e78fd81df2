"""Effects in models of transformers are those of ablating head by head, one run each."""

from functools import partial, wraps

import pytest
import torch
from record.models.classes import randomize
from support.gemma_4 import gemma_4
from torch import nn

import regard
from regard.intercept import observe_calls
from regard.intervene import Intervention

hf = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
}
TOKENS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
MODELS = {
    "gpt2": (
        hf.GPT2LMHeadModel,
        hf.GPT2Config(vocab_size=37, n_embd=24, n_layer=3, n_head=4, n_positions=40, **TOKENS),
    ),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(num_key_value_heads=2, **SIZES, **TOKENS)),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(num_key_value_heads=2, head_dim=6, sliding_window=5, **SIZES, **TOKENS),
    ),
    "bert": (hf.BertForMaskedLM, hf.BertConfig(**SIZES)),
}


# Of a decoder of sliding windows and of an encoder; the others take part in make thorough.
USUAL = {"gemma2", "bert"}


@pytest.fixture(
    params=[pytest.param(one, marks=[pytest.mark.thorough] * (one not in USUAL)) for one in MODELS]
)
def model(request):
    torch.manual_seed(0)
    kind, config = MODELS[request.param]
    implementation = "eager" if request.param == "gemma2" else "sdpa"
    return randomize(kind._from_config(config, attn_implementation=implementation)).eval()


@pytest.fixture
def inputs():
    ids = torch.randint(2, 37, (1, 9), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def one_by_one(model, inputs, target, state):
    with torch.no_grad(), regard.intervene(model) as change:
        state(change)
        return float(target(model(**inputs)))


def test_heads(model, inputs):
    target = regard.lens.LogProbability(5)
    effects = regard.lens.effects(model, inputs, target)
    assert effects.values.shape == (3, 4)
    assert effects.values.abs().max() > 1e-3
    for (layer, head), value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        changed = one_by_one(
            model, inputs, target, partial(Intervention.ablate, layers=layer, heads=head)
        )
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def spy(monkeypatch, kind):
    """How many positions of logits each run of a model gives; with a hook, it would give all."""
    lengths, forward = set(), kind.forward

    @wraps(forward)
    def seen(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        lengths.add(output.logits.shape[1])
        return output

    monkeypatch.setattr(kind, "forward", seen)
    return lengths


def assert_as_by_function(model, inputs, target, **options):
    """A function gives the model what it is given, so that all logits are computed."""
    effects = regard.lens.effects(model, inputs, target, **options)
    expected = regard.lens.effects(model, lambda model: model(**inputs), target, **options)
    # Both add up products of 24 numbers in float32, in another order.
    torch.testing.assert_close(effects.values, expected.values, rtol=1e-4, atol=1e-5)
    assert effects.unchanged == pytest.approx(expected.unchanged, abs=1e-5)
    assert effects.values.abs().max() > 1e-3


@pytest.mark.each_once
@pytest.mark.parametrize("over", ["heads", "keys"])
def test_logits_before_the_position_are_not_computed(model, inputs, over, monkeypatch):
    target = regard.lens.LogProbability(5, position=-2)
    lengths = spy(monkeypatch, type(model))
    regard.lens.effects(model, inputs, target, over=over)
    assert lengths == {9 if isinstance(model, hf.BertForMaskedLM) else 2}
    monkeypatch.undo()
    assert_as_by_function(model, inputs, target, over=over)


class First(regard.lens.Logit):
    def __call__(self, output):
        return output.logits[:, 0, self.token]


@pytest.mark.parametrize(
    ("options", "target", "length"),
    [
        ({}, regard.lens.Logit(5, position=3), 9),  # not known from the end
        ({}, "loss", 9),
        ({}, lambda output: output.logits[:, 2, 5], 9),
        ({}, First(5), 9),
        ({"labels": torch.arange(9)[None]}, regard.lens.Logit(5), 9),
        ({"logits_to_keep": 4}, regard.lens.Logit(5), 4),
        ({}, regard.lens.Logit(5), 1),
        ({}, regard.lens.Logit(5, position=-9), 9),
    ],
    ids=["from_the_start", "loss", "function", "own", "labels", "given", "last", "all"],
)
def test_logits_are_kept_where_they_are_needed(inputs, options, target, length, monkeypatch):
    kind, config = MODELS["llama"]
    model = randomize(kind(config)).eval()
    lengths = spy(monkeypatch, kind)
    effects = regard.lens.effects(model, {**inputs, **options}, target, layers=1)
    assert lengths == {length}
    assert effects.values.abs().max() > 1e-3


def centred(module, args, logits):
    return logits - logits.mean(1, keepdim=True)


class Narrow(hf.LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, logits_to_keep=0):
        output = super().forward(input_ids, attention_mask=attention_mask)
        return centred(self, (), output.logits)


@pytest.mark.parametrize("how", ["hook", "forward of its own", "forward of the instance"])
def test_other_code_may_read_all_logits(inputs, how):
    kind, config = MODELS["llama"]
    model = randomize((Narrow if how == "forward of its own" else kind)(config)).eval()
    if how == "hook":
        model.lm_head.register_forward_hook(centred)
    if how == "forward of the instance":
        own = model.forward
        model.forward = wraps(own)(lambda **inputs: centred(model, (), own(**inputs).logits))
    assert_as_by_function(model, inputs, regard.lens.LogProbability(5))


def test_layers_that_share_keys_have_all_queries(inputs):
    model = gemma_4()
    assert_as_by_function(model, inputs, regard.lens.LogProbability(5), by="mean")
    spans, answer = [(1, 3), (4, 6)], regard.lens.Answer(slice(8, 9))
    options = {"over": spans, "hidden_from": "question"}
    ids = inputs["input_ids"]
    once = regard.lens.effects(model, ids, answer, **options)
    whole = regard.lens.effects(model, {"input_ids": ids}, answer, **options)
    torch.testing.assert_close(once.values, whole.values, rtol=1e-4, atol=1e-5)


def test_the_loss_of_an_encoder_decoder_is_of_the_text_that_it_decodes(inputs):
    config = hf.BartConfig(
        vocab_size=37, d_model=24, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_position_embeddings=40, decoder_start_token_id=1, **TOKENS,
    )  # fmt: skip
    model = randomize(hf.BartForConditionalGeneration(config)).eval()
    decoded = inputs["input_ids"].flip(-1)
    effects = regard.lens.effects(model, {**inputs, "decoder_input_ids": decoded}, "loss", layers=0)
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=decoded).logits
    expected = nn.functional.cross_entropy(logits[0, :-1], decoded[0, 1:]).item()
    assert effects.unchanged == pytest.approx(expected, abs=1e-5)
    with pytest.raises(ValueError, match="run as a mapping with decoder_input_ids"):
        regard.lens.effects(model, inputs, "loss")


def test_a_position_before_the_text_is_named(inputs):
    kind, config = MODELS["llama"]
    with pytest.raises(ValueError, match="position is -10, but the output has 9 tokens"):
        regard.lens.effects(kind(config), inputs, regard.lens.Logit(5, position=-10))


def test_keys(model, inputs):
    effects = regard.lens.effects(model, inputs, "loss", over="keys", batch_size=3)
    assert effects.values.shape == (9,)
    ids = inputs["input_ids"][0]

    def loss(output):
        return nn.functional.cross_entropy(output.logits[0, :-1], ids[1:])

    for key, value in enumerate(effects.values.tolist()[:-1]):
        changed = one_by_one(
            model,
            inputs,
            loss,
            partial(Intervention.knock_out, keys=key, queries=slice(key + 1, None)),
        )
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-5)


def test_gradients_point_where_ablation_goes(model, inputs):
    check = regard.lens.effects(model, inputs, regard.lens.Logit(5), method="gradient").check(12)
    assert check.rank_correlation > 0.4


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_layers_before_a_change_are_skipped(name, inputs):
    torch.manual_seed(0)
    kind, config = MODELS[name]
    model, calls = randomize(kind._from_config(config, attn_implementation="sdpa")).eval(), []
    with observe_calls(calls.append):
        regard.lens.effects(model, inputs["input_ids"], regard.lens.Logit(5))
    # As it is, with each of the first two heads off, with all others in one batch; and, since
    # layers write to a cache, each layer but the first alone, which shows that none is missed.
    assert len(calls) == 3 + 3 + 3 + 2


def mixtral():
    sizes = {**SIZES, "num_key_value_heads": 2, "num_local_experts": 3}
    return hf.MixtralForCausalLM(hf.MixtralConfig(**sizes, **TOKENS))


def gemma3n():
    sizes = {**SIZES, "num_key_value_heads": 2, "num_hidden_layers": 6}
    config = hf.Gemma3nTextConfig(
        head_dim=6, num_kv_shared_layers=2, layer_types=["sliding_attention", "full_attention"] * 3,
        sliding_window=5, vocab_size_per_layer_input=37, hidden_size_per_layer_input=7,
        activation_sparsity_pattern=[0.0] * 6, laurel_rank=3, **sizes, **TOKENS,
    )  # fmt: skip
    return hf.Gemma3nForCausalLM(config)


def router(output):
    return output.router_logits[0].reshape(-1, 9, 3)[:, -1, 0]


@pytest.mark.parametrize(
    ("make", "options", "target"),
    [
        (mixtral, {"output_router_logits": True}, router),
        pytest.param(
            *(mixtral, {"output_router_logits": True}, regard.lens.Logit(5)),
            marks=pytest.mark.thorough,
        ),
        (mixtral, {"output_hidden_states": True}, lambda out: out.hidden_states[2][:, -1, 3]),
        pytest.param(gemma3n, {}, regard.lens.Logit(5), marks=pytest.mark.thorough),
        (gemma_4, {}, regard.lens.Logit(5)),
    ],
)
def test_layers_that_hand_on_more_than_they_return(make, options, target, inputs):
    torch.manual_seed(0)
    model = randomize(make()).eval()
    run = {"input_ids": inputs["input_ids"], **options}
    given = regard.lens.effects(model, run, target)
    expected = regard.lens.effects(model, lambda model: model(**run), target)
    assert expected.values.abs().max() > 1e-3
    torch.testing.assert_close(given.values, expected.values, atol=1e-4, rtol=1e-4)


def test_pictures_have_patches_for_keys():
    torch.manual_seed(0)
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    config = hf.ViTConfig(image_size=8, patch_size=4, num_labels=5, **sizes)
    model = randomize(hf.ViTForImageClassification(config)).eval()
    inputs = {"pixel_values": torch.randn(1, 3, 8, 8)}

    def target(output):
        return output.logits[:, 3]

    heads = regard.lens.effects(model, inputs, target)
    for (layer, head), value in zip(heads.places, heads.values.flatten().tolist(), strict=True):
        changed = one_by_one(
            model, inputs, target, partial(Intervention.ablate, layers=layer, heads=head)
        )
        assert value == pytest.approx(changed - heads.unchanged, abs=1e-5)
    keys = regard.lens.effects(model, inputs, target, over=[(1, 3)], heads=[0, 1])
    where = partial(Intervention.knock_out, keys=[1, 2], queries=slice(3, None), heads=[0, 1])
    changed = one_by_one(model, inputs, target, where)
    assert float(keys.values[0]) == pytest.approx(changed - keys.unchanged, abs=1e-5)


def test_an_encoder_s_decoder():
    torch.manual_seed(0)
    config = hf.T5Config(
        vocab_size=37, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4, **{
            **TOKENS, "decoder_start_token_id": 0
        }
    )  # fmt: skip
    model = randomize(hf.T5ForConditionalGeneration(config)).eval()
    ids = torch.randint(2, 37, (1, 7))
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    target = regard.lens.Logit(5)
    effects = regard.lens.effects(model, inputs, target)
    assert effects.values.shape == (2, 4)
    for (layer, head), value in zip(effects.places, effects.values.flatten().tolist(), strict=True):
        changed = one_by_one(
            model, inputs, target, partial(Intervention.ablate, layers=layer, heads=head)
        )
        assert value == pytest.approx(changed - effects.unchanged, abs=1e-4)


def test_a_generation_is_a_run():
    torch.manual_seed(0)
    kind, config = MODELS["llama"]
    model = randomize(kind._from_config(config, attn_implementation="sdpa")).eval()
    ids = torch.randint(2, 37, (1, 5))

    def generate(model):
        return model.generate(
            ids, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
        )

    effects = regard.lens.effects(model, generate, lambda out: out.logits[-1][:, 3], layers=1)
    with regard.intervene(model) as change:
        change.ablate(layers=1, heads=2)
        changed = float(generate(model).logits[-1][0, 3])
    assert float(effects.values[0, 2]) == pytest.approx(changed - effects.unchanged, abs=1e-5)
