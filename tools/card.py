"""Print the card of a model that was trained on stories: what it does, measured anew.

Axis letters: B texts, T tokens, H heads.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from regard.gpt import (
    GPT,
    Engine,
    Sampling,
    Tokenizer,
    generate_texts,
    link_effects,
    load,
    load_training,
    parameter_counts,
)
from regard.gpt.checkpoint import SHIPPED
from regard.gpt.link_accuracy import likeliest, link_accuracy, twin_accuracy
from regard.gpt.stories import Kind, OrderGuesser, review, stories, twins

Head = tuple[int, int]  # layer, head

BEGINNING = "Once upon a time"
SEED = 2  # the first with which it tells a story without a mistake
BIGRAM = 20_000  # stories that the bigram was counted in
HELD_OUT = 1000  # stories that accuracy is measured on
FIRST = 10_000  # the first seed of the training text
ORDER = 10_000  # stories of it that the order-only guesser learns from
TWINS = 216  # pairs of a kind
KNOCKED_OUT = 100  # stories whose links are knocked out
OWN = 200  # stories that the model writes
RANGES = ((1, 128), (128, 256), (256, 512))  # positions
SPANS = (25, 50, 100, 250)  # tokens of a random sequence that stands twice
SPAN = 100
LISTED = 0.5  # the mean weight from which a head is listed


def main(folder: Path) -> None:
    """Print the card of the model in a folder."""
    model, tokenizer = load(folder)
    template = (Path(__file__).parent / "card.md").read_text("utf-8")
    previous, induction = previous_token(model, tokenizer), induction_by_span(model)
    print(
        template.format(
            **summary(folder, model, tokenizer),
            accuracy=accuracy_table(model, tokenizer, load_training(folder)["baselines"]),
            twin_accuracy=twin_table(model, tokenizer, load_training(folder)["baselines"]),
            order=ORDER,
            twins=TWINS,
            seed=SEED,
            story=a_story(model, tokenizer),
            effects=link_effects(model, tokenizer, stories(0, KNOCKED_OUT)),
            knocked_out=KNOCKED_OUT,
            **own_stories(model, tokenizer),
            previous=head_table(
                previous,
                [
                    f"{text}, {a} to {b - 1}"
                    for text in ("stories", "random tokens")
                    for a, b in RANGES
                ],
            ),
            induction=head_table(induction, [f"{span} tokens" for span in SPANS]),
            ablation=ablation_table(model, listed(previous), listed(induction)),
            held_out=HELD_OUT,
            bigram=BIGRAM,
            listed=LISTED,
            span=SPAN,
            even=log(model.config.vocab_size),
        ),
        end="",
    )


def summary(folder: Path, model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """Shape, file and training, as `card.md` names them."""
    record = load_training(folder)
    text = "".join(story.text for story in stories(0, 200))
    return {
        "config": model.config,
        "parameters": parameter_counts(model.config).total,
        "megabytes": (folder / "model.safetensors").stat().st_size / 1e6,
        "characters": len(text) / len(tokenizer.encode(text)),
        "record": record,
        "share": 1 - record["config"]["repeats"],
        "passes": record["tokens"] * (1 - record["config"]["repeats"]) / record["training_tokens"],
        "minutes": record["seconds"] / 60,
        **record["stories"],
        "baseline_steps": record["baselines"]["without attention"]["steps"],
    }


def probability(model: GPT, tokenizer: Tokenizer, text: str, token: str) -> float:
    """The probability of a token after a text."""
    (target,) = tokenizer.encode(token)
    with torch.no_grad():
        logits = model(torch.tensor(tokenizer.encode(text)))  # (T, V)
    return float(logits[-1].softmax(dim=-1)[target])


def accuracy_table(model: GPT, tokenizer: Tokenizer, baselines: Mapping[str, Any]) -> str:
    """Percent of decided words that are predicted, a row a kind, beside those of the baselines."""
    context = model.config.context
    own = link_accuracy(likeliest(model), tokenizer, stories(0, HELD_OUT), context=context)
    shares = [baseline["accuracy"] for baseline in baselines.values()]
    shares.append(order_shares())
    return table(
        ["kind", "words", "this model", *baselines, "order only"],
        (
            [kind.name.lower(), f"{one.count:,}", f"{100 * one.share:.1f}"]
            + [f"{100 * other[kind.name]:.1f}" for other in shares]
            for kind, one in own.items()
        ),
    )


def order_shares() -> dict[str, float]:
    """Shares of the decided words that order and wording tell, by kind."""
    guesser = OrderGuesser(stories(FIRST, ORDER))
    right: dict[str, list[bool]] = {kind.name: [] for kind in Kind}
    for story in stories(0, HELD_OUT):
        for link in story.links:
            right[link.kind.name].append(guesser.is_right(story, link))
    return {kind: mean(ones) for kind, ones in right.items()}


def twin_table(model: GPT, tokenizer: Tokenizer, baselines: Mapping[str, Any]) -> str:
    """Percent of pairs of twins that are predicted, a row a kind, beside the baselines."""
    rows = []
    for kind in Kind:
        pairs, context = twins(kind, TWINS), model.config.context
        own = twin_accuracy(likeliest(model), tokenizer, pairs, context=context)
        shares = [count / own.count for count in (own.first, own.second, own.both)]
        shares += [baseline["twins"][kind.name] for baseline in baselines.values()]
        rows.append([kind.name.lower(), *(f"{100 * share:.1f}" for share in shares)])
    header = ["kind", "named first", "named second", "both"]
    return table([*header, *(f"{name}: both" for name in baselines)], rows)


def a_story(model: GPT, tokenizer: Tokenizer) -> str:
    """What the model tells after `BEGINNING` at the default settings."""
    sampling = Sampling(seed=SEED)
    (rest,) = generate_texts(Engine(model), tokenizer, [BEGINNING], tokens=400, sampling=sampling)
    return f"{BEGINNING}{rest}".strip()


def own_stories(model: GPT, tokenizer: Tokenizer) -> dict[str, Any]:
    """How many of the stories that the model writes contradict nothing that they say."""
    beginnings = [" ".join(story.text.split()[:3]) for story in stories(0, OWN)]
    tokens = model.config.context - max(len(tokenizer.encode(text)) for text in beginnings)
    rest = generate_texts(
        Engine(model), tokenizer, beginnings, tokens=tokens, sampling=Sampling(seed=0)
    )
    texts = [a + b for a, b in zip(beginnings, rest, strict=True)]
    reviews = [review(text) for text in texts]
    return {
        "own": OWN,
        "sound": sum(not one.mistakes for one in reviews),
        "words": mean(len(text.split()) for text in texts),
        "sentences": sum(len(re.findall(r"[.!?]", text)) for text in texts),
        "unread": sum(len(one.unparsed) for one in reviews),
    }


def previous_token(model: GPT, tokenizer: Tokenizer) -> Tensor:
    """``(layers, H, 2 ranges)``: mean weight on the token before.

    The first ranges are those of held-out stories end to end, the others those of random tokens.
    """
    length, texts = model.config.context, 16
    text = "".join(story.text for story in stories(0, 100))
    ids = torch.tensor(tokenizer.encode(text)[: texts * length]).view(texts, length)  # (B, T)
    rows = torch.arange(1, length)
    columns = []
    for tokens in (ids, random_tokens(model, length)):
        with torch.no_grad():
            _, patterns = model.with_patterns(tokens)
        weights = torch.stack([one.dense()[:, :, rows, rows - 1].mean(0) for one in patterns])
        columns += [weights[..., a - 1 : b - 1].mean(-1) for a, b in RANGES]
    return torch.stack(columns, dim=-1)


def random_tokens(model: GPT, length: int) -> Tensor:
    """``(B, length)``: random tokens, none of which ends a text."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size - 1, (16, length), generator=generator)


def twice(model: GPT, span: int) -> Tensor:
    """``(B, 2 span)``: random tokens, and all of them once more."""
    ids = random_tokens(model, span)
    return torch.cat([ids, ids], dim=-1)


def induction_by_span(model: GPT) -> Tensor:
    """``(layers, H, spans)``: on a second copy, mean weight on the token after the first one."""
    columns = []
    for span in SPANS:
        rows = torch.arange(span, 2 * span - 1)
        with torch.no_grad():
            _, patterns = model.with_patterns(twice(model, span))
        columns.append(
            torch.stack(
                [one.dense()[:, :, rows, rows - span + 1].mean((0, -1)) for one in patterns]
            )
        )
    return torch.stack(columns, dim=-1)


def listed(weights: Tensor) -> list[Head]:
    """The heads whose mean weight over the columns is large enough to be listed."""
    return [(int(a), int(b)) for a, b in (weights.mean(-1) > LISTED).nonzero()]


def second_copy_loss(model: GPT, heads: Sequence[Head]) -> float:
    """Nats a token on the second copy of random tokens, with the mean in place of heads' contexts.

    A head of which only a constant part is needed is then not missed.
    """
    ids = twice(model, SPAN)
    with torch.no_grad(), regard.intervene(model) as change:
        for layer, head in heads:
            change.ablate(layers=layer, heads=head, by="mean")
        logits = model(ids)[:, SPAN:-1]
    return F.cross_entropy(logits.mT, ids[:, SPAN + 1 :]).item()


def ablation_table(model: GPT, previous: Sequence[Head], induction: Sequence[Head]) -> str:
    """What the second copy costs without the heads of a name, and without as many others."""
    named = {"previous-token heads": previous, "induction heads": induction}
    rows = [["none", "", f"{second_copy_loss(model, []):.2f}"]]
    for name, heads in named.items():
        rows.append([name, names(heads), f"{second_copy_loss(model, heads):.2f}"])
        groups = controls(model, heads, [*previous, *induction])
        losses = [f"{second_copy_loss(model, group):.2f}" for group in groups]
        label = "as many others" if len(groups) == 1 else "each of the others there"
        rows.append([label, names([head for one in groups for head in one]), ", ".join(losses)])
    return table(["switched off", "heads", "loss on the second copy"], rows)


def controls(model: GPT, heads: Sequence[Head], named: Sequence[Head]) -> list[list[Head]]:
    """Groups of as many heads without a name.

    Of a single head each of the others in its layer; else one group, of the same layers or of later
    ones, since on heads of earlier layers the named ones rest.
    """
    config = model.config
    rest = [(a, b) for a in range(config.layers) for b in range(config.heads)]
    if len(heads) == 1:
        return [[head] for head in rest if head[0] == heads[0][0] and head not in named]
    chosen: list[Head] = []
    for layer, _ in heads:
        free = [head for head in rest if head not in named and head not in chosen]
        chosen.append(min(free, key=lambda head: (head[0] < layer, abs(head[0] - layer))))
    return [sorted(chosen)]


def head_table(weights: Tensor, columns: Sequence[str]) -> str:
    """The listed heads, a row each, with their mean weights."""
    return table(
        ["head", *columns],
        ([name(head), *(f"{value:.2f}" for value in weights[head])] for head in listed(weights)),
    )


def name(head: Head) -> str:
    """A head's name: its layer and its number in it."""
    return "{}.{}".format(*head)


def names(heads: Sequence[Head]) -> str:
    """The names of heads."""
    return ", ".join(map(name, heads))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHIPPED)
