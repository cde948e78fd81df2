"""The model that comes with the package does what its card says."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import asdict, replace
from itertools import islice
from math import sqrt
from pathlib import Path
from statistics import median

import pytest
import safetensors.torch
import torch

from regard.gpt import (
    BPETokenizer,
    CheckpointError,
    Sampling,
    evaluate,
    generate_texts,
    link_effects,
    load,
    load_training,
)
from regard.gpt.checkpoint import SHIPPED
from regard.gpt.link_accuracy import bigram, likeliest, link_accuracy, twin_accuracy
from regard.gpt.stories import Kind, check, corpus, review, stories, twins

TOOLS = Path(__file__).parents[2] / "tools"
CARD = (SHIPPED / "README.md").read_text("utf-8")


def tool(name):
    spec = importlib.util.spec_from_file_location(f"tools_{name}", TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def card():
    return tool("card")


@pytest.fixture(scope="module")
def recipe():
    return tool("model")


@pytest.fixture(scope="module")
def model():
    return load()[0]


@pytest.fixture(scope="module")
def tokenizer():
    return load()[1]


def card_rows(header):
    """The rows of the card's table with this header, by their first cell."""
    lines = CARD[CARD.index(f"| {header} |") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


def test_its_size_is_within_the_limit(model, tokenizer, recipe):
    assert model.config == recipe.SHAPE
    assert model.config.context == 512
    assert isinstance(tokenizer, BPETokenizer)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 10_000_000


def test_its_file_is_in_half_precision_and_loads_exactly(model):
    weights = safetensors.torch.load_file(SHIPPED / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], weight.float()) for name, weight in weights.items())


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_its_weights_know_the_files_beside_them(tmp_path, name):
    shutil.copytree(SHIPPED, tmp_path / "m")
    content = json.loads((SHIPPED / name).read_text("utf-8"))
    (tmp_path / "m" / name).write_text(json.dumps({**content, "dropout": 0.5}))
    with pytest.raises(CheckpointError, match=f"{name} is damaged: it was changed after"):
        load(tmp_path / "m")


def test_common_words_are_one_token(tokenizer):
    words = Counter(
        word for story in stories(0, 100) for word in re.findall(r" [A-Za-z]+", story.text)
    )
    whole = {word for word in words if len(tokenizer.encode(word)) == 1}
    assert {" cat", " mat"} <= whole
    assert {word for word, count in words.most_common(300)} <= whole
    assert sum(words[word] for word in whole) > 0.95 * words.total()


def test_its_record_is_the_recipe_run_to_the_end(recipe):
    record = load_training()
    # How often losses are read, which records did not hold then, changes no weight.
    assert record["config"] | {"log_every": recipe.RECIPE.log_every} == asdict(recipe.RECIPE)
    assert record["step"] == recipe.RECIPE.steps
    assert not record["interrupted"]
    assert f"{record['validation_loss']:.3f}" in CARD
    assert f"{record['tokens']:,}" in CARD


def test_its_loss_on_stories_that_it_never_read(model, tokenizer):
    texts = [story.text for story in stories(0, 100)]
    tokens = torch.tensor([i for text in texts for i in [*tokenizer.encode(text), tokenizer.end]])
    # Held-out stories alone; the loss of the record is of other stories and documentation.
    assert evaluate(model, tokens, end=tokenizer.end) < 1.1 * load_training()["validation_loss"]


SURE = {Kind.REPETITION, Kind.QUOTATION, Kind.PLACE, Kind.PRONOUN}  # at least 95 % of words


def test_it_predicts_decided_words_as_often_as_its_card_says(model, tokenizer):
    measured = link_accuracy(likeliest(model), tokenizer, stories(0, 60), context=512)
    for kind, (count, percent, *_) in card_rows("kind").items():
        share, number = float(percent) / 100, measured[Kind[kind.upper()]].count
        assert int(count.replace(",", "")) > number > 0
        if Kind[kind.upper()] in SURE:
            assert share >= 0.95
        # Four standard errors of so many words; those of one story depend on each other.
        margin = 4 * sqrt(share * (1 - share) / number) + 0.02
        assert measured[Kind[kind.upper()]].share == pytest.approx(share, abs=margin), kind


@pytest.mark.thorough
def test_a_bigram_and_a_model_without_attention_reach_less(tokenizer):
    rows = card_rows("kind")
    texts = corpus(seed=10_000, characters=1_000_000)
    tokens = torch.tensor([i for text in texts for i in tokenizer.encode(text)])
    predict = bigram(tokens, tokenizer.vocab_size)
    measured = link_accuracy(predict, tokenizer, stories(0, 120), context=512)
    for kind, (_, own, two, alone, _) in rows.items():
        assert float(own) > float(two) + 10
        assert float(own) > float(alone) + 10
        number = measured[Kind[kind.upper()]].count
        margin = 4 * sqrt(0.25 / number) + 0.02  # another and smaller text, fewer words
        assert measured[Kind[kind.upper()]].share == pytest.approx(float(two) / 100, abs=margin)


@pytest.mark.thorough
def test_its_stories_break_no_fact_of_their_own(model, tokenizer):
    own, sound = map(
        int, re.search(r"Of (\d+) stories .*?, (\d+) contradict", CARD, re.DOTALL).groups()
    )
    assert own == 200
    assert sound >= 0.8 * own
    texts = [" ".join(story.text.split()[:3]) for story in stories(0, 13)]
    rest = generate_texts(model, tokenizer, texts, tokens=500, sampling=Sampling(seed=1))
    whole = sum(not check(text + more) for text, more in zip(texts, rest, strict=True))
    share = sound / own
    assert whole / 13 > share - 3 * sqrt(share * (1 - share) / 13) - 0.02


@pytest.mark.thorough
def test_its_likeliest_texts_are_sentences(model, tokenizer, card):
    prompts, greedy = [card.BEGINNING, "The cat sat"], Sampling(temperature=0.0)
    for prompt, more in zip(
        prompts,
        generate_texts(model, tokenizer, prompts, tokens=150, sampling=greedy),
        strict=True,
    ):
        sentences = re.match(r".*[.?!]\"?(?=\s)", prompt + more, re.DOTALL)[0]
        assert not review(sentences).unparsed


def test_the_story_of_its_card_has_no_mistake():
    text = re.search(r"```text\n(.*?)\n```", CARD, re.DOTALL)[1]
    seen = review(text)
    assert not seen.mistakes
    assert not seen.unparsed


def test_its_stories_end(model, tokenizer):
    texts = generate_texts(
        model, tokenizer, ["Once upon a time"] * 5, tokens=500, sampling=Sampling(seed=0)
    )
    assert all(text.endswith((".\n", '."\n')) for text in texts)


@pytest.mark.thorough
def test_what_it_looks_at_and_needs_is_as_its_card_says(model, tokenizer, card):
    line = next(line for line in CARD.splitlines() if line.startswith("cause "))
    causes = [
        replace(story, links=tuple(link for link in story.links if link.kind is Kind.CAUSE))
        for story in stories(0, card.KNOCKED_OUT)
    ]
    effects = link_effects(model, tokenizer, [story for story in causes if story.links])
    _, count, right, looks, weight, *_ = line.split()
    assert effects.counts == {"cause": int(count)}
    assert float(right) == 1.0
    layer, head = map(int, looks.split("."))
    # Weights hardly depend on rounding; other processors' may in the second digit.
    assert effects.weights.spans.mean[0, layer, head] == pytest.approx(float(weight), abs=0.02)
    all_heads = float(line.split()[-1].replace("−", "-"))
    assert effects.log_probability.model.mean[0] == pytest.approx(all_heads, abs=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Kind.PLACE, Kind.REPETITION])
def test_twins_are_right_as_often_as_the_card_says(model, tokenizer, recipe, kind):
    first, second, both, of_bigram, _ = card_rows("kind | named first")[kind.name.lower()]
    pairs = twins(kind, recipe.TWINS)
    measured = twin_accuracy(likeliest(model), tokenizer, pairs, context=model.config.context)
    for count, percent in (
        (measured.first, first),
        (measured.second, second),
        (measured.both, both),
    ):
        # Rounding may decide one or two pairs otherwise on another processor.
        assert 100 * count / recipe.TWINS == pytest.approx(float(percent), abs=1)
    assert float(of_bigram) == 0


@pytest.mark.parametrize(
    "name", [pytest.param("previous", marks=pytest.mark.thorough), "induction"]
)
def test_its_heads_look_where_the_card_says(model, tokenizer, card, name):
    if name == "previous":
        weights, header = card.previous_token(model, tokenizer), "stories, 1 to 127"
    else:
        weights, header = card.induction_by_span(model), "25 tokens"
    rows = card_rows(f"head | {header}")
    assert rows
    assert {card.name(head) for head in card.listed(weights)} == set(rows)
    for head, row in rows.items():
        layer, number = map(int, head.split("."))
        # Weights hardly depend on rounding; other processors' may in the second digit.
        assert weights[layer, number].tolist() == pytest.approx([*map(float, row)], abs=0.02)


@pytest.mark.thorough
def test_the_second_copy_rests_on_the_named_heads(model, card):
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in islice(CARD[CARD.index("| switched off |") :].splitlines(), 2, 7)
    ]
    losses = []
    for label, heads, figures in lines:
        off = [tuple(map(int, head.split("."))) for head in heads.split(", ") if head]
        alone = label.startswith("each")
        measured = [
            card.second_copy_loss(model, one) for one in ([[h] for h in off] if alone else [off])
        ]
        expected = [float(figure) for figure in figures.split(", ")]
        assert measured == pytest.approx(expected, rel=0.05, abs=0.05), label
        losses.append(measured)
    (none,), (previous,), others, (induction,), (more_others,) = losses
    assert previous > 3 * median(others)
    assert induction > 3 * more_others
    assert none < 0.5
