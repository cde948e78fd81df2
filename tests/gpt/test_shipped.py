"""The model that comes with the package does what its card says."""

from __future__ import annotations

import json
import re
import shutil
from math import log
from statistics import median

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.gpt import (
    BPETokenizer,
    CheckpointError,
    GPTConfig,
    Sampling,
    TrainConfig,
    evaluate,
    generate,
    load,
    load_training,
    python_texts,
    split_texts,
)
from regard.gpt.checkpoint import SHIPPED

SPAN = 100  # tokens of the random sequence, which then stands a second time


@pytest.fixture(scope="module")
def model():
    return load()[0]


@pytest.fixture(scope="module")
def tokenizer():
    return load()[1]


@pytest.fixture(scope="module")
def repeated(model):
    """Random sequences, each twice: ids, losses of the predicted tokens, weights by layer."""
    generator = torch.Generator().manual_seed(0)
    span = torch.randint(model.config.vocab_size, (16, SPAN), generator=generator)
    ids = torch.cat([span, span], dim=-1)  # (B, 2 SPAN)
    with torch.no_grad():
        logits, patterns = model.with_patterns(ids)
    losses = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")  # (B, 2 SPAN - 1)
    weights = torch.stack([pattern.dense() for pattern in patterns])  # (layers, B, H, T, T)
    return ids, losses, weights


def test_its_size_is_within_the_limit(model, tokenizer):
    config = model.config
    assert config == GPTConfig()
    assert config.layers >= 4
    assert config.heads >= 4
    assert config.context >= 256
    assert 1000 <= config.vocab_size <= 2048
    assert isinstance(tokenizer, BPETokenizer)
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 5_000_000
    assert (SHIPPED / "README.md").is_file()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_its_weights_know_the_files_beside_them(tmp_path, name):
    shutil.copytree(SHIPPED, tmp_path / "m")
    content = json.loads((SHIPPED / name).read_text("utf-8"))
    (tmp_path / "m" / name).write_text(json.dumps({**content, "dropout": 0.5}))
    with pytest.raises(CheckpointError, match=f"{name} is damaged: it was changed after"):
        load(tmp_path / "m")


def test_its_record_is_the_default_recipe_run_to_the_end():
    record = load_training()
    assert TrainConfig(**record["config"]) == TrainConfig()
    assert record["step"] == TrainConfig().steps
    assert not record["interrupted"]
    card = (SHIPPED / "README.md").read_text("utf-8")
    assert f"{record['validation_loss']:.3f}" in card
    assert f"{record['tokens']:,}" in card


def test_the_validation_loss_is_the_one_stated(model, tokenizer):
    config, record = TrainConfig(), load_training()
    _, held_out = split_texts(python_texts(), validation=config.validation, seed=config.seed)
    tokens = torch.tensor([i for text in held_out for i in tokenizer.encode(text)])
    loss = evaluate(model, tokens)
    if len(tokens) == record["validation_tokens"]:  # the Python that it was trained on
        assert loss == pytest.approx(record["validation_loss"], abs=2e-3)
    # Another Python's reference differs in places, and what is held out here was partly seen.
    assert loss < record["validation_loss"] + 0.2


def test_the_second_copy_of_a_random_sequence_is_foreseen(repeated):
    _, losses, _ = repeated
    first, second = losses[:, : SPAN - 1].mean(), losses[:, SPAN:].mean()
    assert first > log(1024)  # nothing to go by: no better than guessing among all tokens
    assert second < 0.5
    ids, _, _ = repeated
    model, _ = load()
    with torch.no_grad():
        foreseen = model(ids)[:, SPAN:-1].argmax(-1)
    assert foreseen.eq(ids[:, SPAN + 1 :]).float().mean() > 0.9


def test_there_are_induction_heads(repeated):
    _, _, weights = repeated
    rows = torch.arange(SPAN, 2 * SPAN - 1)
    # From each position of the second copy onto the token after the same token's first place.
    scores = weights[..., rows, rows - SPAN + 1].mean(dim=(1, -1))  # (layers, H)
    assert scores.max() > 0.6  # chance: about 1 / 150
    assert scores[0].max() < 0.1  # the first layer cannot know what stood before a token


INDUCTION = {1: [0, 1, 2], 2: [0, 3]}


@pytest.mark.parametrize(
    ("row", "heads"),
    [
        ("none", {}),
        ("layer 0, heads 1, 2 (previous token)", {0: [1, 2]}),
        ("layer 0, heads 0, 3", {0: [0, 3]}),
        ("layer 2, heads 0, 3", {2: [0, 3]}),
        ("layer 1, heads 0, 1, 2", {1: [0, 1, 2]}),
        ("all five induction heads", INDUCTION),
    ],
)
def test_the_second_copy_rests_on_the_heads_of_the_card(model, repeated, row, heads):
    card = (SHIPPED / "README.md").read_text("utf-8")
    figure = float(re.search(rf"\| {re.escape(row)} \| (\S+) \|", card)[1])
    ids, _, _ = repeated
    with torch.no_grad(), regard.intervene(model) as change:
        for layer, numbers in heads.items():
            change.ablate(layers=layer, heads=numbers)
        loss = F.cross_entropy(model(ids)[:, SPAN:-1].mT, ids[:, SPAN + 1 :]).item()
    assert loss == pytest.approx(figure, rel=0.05, abs=0.02)  # other processors round differently


def test_without_previous_token_heads_induction_heads_do_not_find_the_place(model, repeated):
    ids, _, _ = repeated
    with torch.no_grad(), regard.intervene(model) as change, regard.record(model) as recording:
        change.ablate(layers=0, heads=[1, 2])
        model(ids)
    rows = torch.arange(SPAN, 2 * SPAN - 1)
    weights = recording[2].dense()[:, [0, 3]]
    assert weights[..., rows, rows - SPAN + 1].mean().item() == pytest.approx(0.04, abs=0.02)


def test_there_is_a_previous_token_head(model, tokenizer):
    text = (
        "A class definition is an executable statement. The inheritance list usually gives a "
        "list of base classes, so each item in the list should evaluate to a class object."
    )
    _, patterns = model.with_patterns(torch.tensor(tokenizer.encode(text)))
    weights = torch.stack([pattern.dense() for pattern in patterns])  # (layers, H, T, T)
    rows = torch.arange(8, weights.shape[-1])
    scores = weights[..., rows, rows - 1].mean(dim=-1)  # (layers, H)
    assert scores[0].max() > 0.5  # chance: about 1 / 30


@pytest.mark.parametrize("text", ["held-out text", "random tokens"])
@pytest.mark.parametrize("head", [1, 2])
def test_its_previous_token_weights_are_those_of_the_card(model, tokenizer, text, head):
    card = (SHIPPED / "README.md").read_text("utf-8")
    row = re.search(rf"\| head {head}, {text} \| (\S+) \| (\S+) \| (\S+) \|", card)
    length, windows = model.config.context, 16
    if text == "held-out text":
        config = TrainConfig()
        _, held_out = split_texts(python_texts(), validation=config.validation, seed=config.seed)
        tokens = [i for part in held_out for i in tokenizer.encode(part)][: windows * length]
        ids = torch.tensor(tokens).view(windows, length)
    else:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(model.config.vocab_size, (windows, length), generator=generator)
    with torch.no_grad():
        _, patterns = model.with_patterns(ids)
    rows = torch.arange(1, length)
    weights = patterns[0].dense()[:, head, rows, rows - 1].mean(0)  # (T - 1,)
    result = [part.mean().item() for part in (weights[:255], weights[255:], weights)]
    # Another Python's text, and other random windows, move the means by less than 0.02.
    assert result == pytest.approx([float(number) for number in row.groups()], abs=0.03)


def test_it_continues_text_with_words_it_has_read(model, tokenizer):
    words = set(" ".join(python_texts("topics")).split())
    prompts = [tokenizer.encode("If the object has no")] * 8  # each continues in its own way
    sampling = Sampling(temperature=0.7, top_k=20, seed=0)
    texts = [
        tokenizer.decode(out.tolist())
        for out in generate(model, prompts, tokens=100, sampling=sampling)
    ]
    written = [text.split()[5:-1] for text in texts]
    assert median(len(set(part)) for part in written) > 10
    assert median(sum(word in words for word in part) / len(part) for part in written) > 0.6
