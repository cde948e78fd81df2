"""The parts of a logit: they add up to it, and each is what hooks by hand give."""

import dataclasses

import pytest
import torch
import transformers as hf
from support.logit_shares import shares_of_a_llama

import regard
from architectures import TOKENS, VERIFIED, build
from regard.lens import Answer, toward
from regard.models import LanguageModel


class Numbers:
    """A tokenizer whose tokens are numbers."""

    end = None

    def tokens(self, ids):
        return [f" {number}" for number in ids]

    def encode(self, text):
        return [int(number) for number in text.split()]


IDS = torch.arange(TOKENS) * 13 % 97 + 3


# Norms behind W_O and before it, parallel blocks, gates, multipliers, softcap, sinks, experts.
SOME = {
    *("gpt2", "gpt_neox", "llama", "qwen3", "gemma2", "gpt_oss", "olmo2", "cohere", "granite"),
    *("bitnet", "qwen3_next", "deepseek_v3"),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in SOME else pytest.param(name, marks=pytest.mark.thorough)
        for name in VERIFIED["causal"]
    ],
)
def test_the_parts_add_up_to_the_logit_and_heads_to_what_attention_adds(name):
    module = build(name, "causal")
    model = LanguageModel(module, Numbers(), name=name)
    parts = toward(model, IDS, 5, against=7, position=[-1, 3])
    with torch.no_grad():
        logits = module(input_ids=IDS[None], use_cache=False).logits[0].double()
    if model.places.softcap is not None:
        logits = torch.atanh(logits / model.places.softcap) * model.places.softcap
    exact = float((logits[[-1, 3], 5] - logits[[-1, 3], 7]).sum())
    size = float(parts.sources.abs().sum() + parts.mlps.abs().sum())
    # Every module rounds to float32.
    assert abs(parts.logit - exact) < 1e-4 * size
    assert abs(parts.total - exact) < 1e-5 * size
    assert parts.unsplit == ()
    # What is neither head nor MLP is a bias of W_O, or a mixer beside the attention.
    outputs = [block.output for block in model.places.blocks if block.output]
    biased = any(getattr(module.get_submodule(o), "bias", None) is not None for o in outputs)
    if not biased and not any(block.others for block in model.places.blocks):
        whole = [b for b in range(len(parts.others)) if model.places.blocks[b].attention]
        assert float(parts.others[whole].abs().sum()) < 1e-5 * size


def test_each_share_is_what_hooks_by_hand_give():
    config = hf.LlamaConfig(
        vocab_size=103, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, initializer_range=0.4,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    module = hf.LlamaForCausalLM(config).eval()
    parts = toward(LanguageModel(module, Numbers(), name="llama"), IDS[:11], " 5")
    embedding, sources, mlps = shares_of_a_llama(module.double(), IDS[:11], 5)
    # The model runs in float32; its shares are below 10.
    torch.testing.assert_close(parts.sources, sources, rtol=0, atol=1e-4)
    torch.testing.assert_close(parts.mlps, mlps, rtol=0, atol=1e-4)
    assert abs(parts.embedding - embedding) < 1e-4
    largest = parts.largest(5)
    assert [abs(part.value) for part in largest] == sorted(
        (abs(part.value) for part in parts.parts()), reverse=True
    )[:5]
    (head,) = [part for part in parts.parts() if part.place == (1, 4)]
    assert head.source == int(sources[1, 4].abs().argmax())
    assert abs(head.from_source - float(sources[1, 4, head.source])) < 1e-4
    assert len(parts.parts()) == 1 + 3 * 7 + 1  # no bias: nothing else in a block


def test_an_answer_is_the_sum_of_its_tokens_and_a_contrast_a_difference():
    model = LanguageModel(build("gpt2", "causal"), Numbers(), name="gpt2")
    answer = toward(model, IDS, Answer(slice(-3, None)))
    one_by_one = [toward(model, IDS, int(IDS[i]), position=i - 1) for i in (-3, -2, -1)]
    torch.testing.assert_close(answer.heads, sum(parts.heads for parts in one_by_one))
    assert answer.logit == pytest.approx(sum(parts.logit for parts in one_by_one))
    first, second = (toward(model, IDS, token) for token in (5, 7))
    torch.testing.assert_close(
        toward(model, IDS, 5, against=7).sources, first.sources - second.sources
    )
    assert first.target == "' 5'"
    assert toward(model, IDS, 5, against=7).target == "' 5' − ' 7'"


def test_the_table_begins_with_the_sum():
    model = regard.models.open()
    text = "Tom had a red kite and a blue drum. Tom wanted the blue"
    parts = toward(model, text, " drum")
    first, second, *rows = str(parts).splitlines()
    assert first == f"logit of ' drum': {parts.logit:.3f} = {parts.total:.3f}, the sum of its parts"
    assert second.split()[:2] == ["part", "share"]
    assert max(map(len, rows)) <= 80
    shown = [float(row[row.index("+" if "+" in row else "-") :].split()[0]) for row in rows]
    assert sum(shown) == pytest.approx(parts.logit, abs=0.06)  # eleven numbers of two decimals


def test_what_has_no_parts_is_refused(encoder):
    model = regard.models.open()
    with pytest.raises(
        TypeError, match=r"model must be a regard\.models\.LanguageModel, but is GPT"
    ):
        toward(model.module, "Tom", " drum")
    with pytest.raises(IndexError, match="position asks for 7, but there are only 0 to"):
        toward(model, "Tom had", " drum", position=7)
    with pytest.raises(ValueError, match="must be one token, but is"):
        toward(model, "Tom had", " drum drum")
    with pytest.raises(ValueError, match="target is 10000000, but the vocabulary ends at"):
        toward(model, "Tom had", 10**7)
    with pytest.raises(regard.Error, match=r"is an encoder|has no next token"):
        toward(regard.models.open(encoder), "the cat", 5)


@pytest.mark.real
def test_the_name_that_a_real_model_writes_comes_from_that_name(smollm2):
    """Indirect object identification; with the names exchanged the answer is the other one."""
    model = smollm2
    text = "When {} and {} went to the store, {} gave a drink to"
    for one, other in (("Mary", "John"), ("John", "Mary")):
        parts = toward(model, text.format(one, other, other), f" {one}", against=f" {other}")
        assert abs(parts.total - parts.logit) < 1e-4 * float(parts.sources.abs().sum())
        assert parts.logit > 3
        head = max((part for part in parts.parts() if part.place), key=lambda part: part.value)
        assert head.name == "head 23.3"


def test_a_head_that_adds_nothing_to_a_logit_does_not_write_it():
    by = regard.lens.leading_head(
        model := regard.models.open(), model.read("Tom had").ids, model("Tom had")[-1]
    )
    for share, loss, decides in ((0.2, 0.2, True), (0.05, 0.2, False), (0.2, 0.05, False)):
        one = dataclasses.replace(by, part=dataclasses.replace(by.part, value=share), loss=loss)
        assert one.decides is decides
