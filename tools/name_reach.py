"""How many heads are named rightly on ten texts, by the whole weight and beside the sinks.

``python tools/name_reach.py [MODEL]``, smollm2 by default, prints a table in Markdown, in eleven
minutes of a busy machine with two cores; `docs/real-models.md` has it. For true are taken the heads
that, as a mean over four lines of random tokens twice over, of other seeds than `regard.lens.probe`
is run with, give more than 0.2 of their whole weight to what followed the token before, or 0.3 to
the token before. Last, and longest, as many heads as are true are found *needed* for induction:
those without which, by their mean context of each position over the other lines, the second copy of
a line loses most of its log-probability. That is a mean over three of the lines, cut to their first
32 tokens twice over.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import regard
from passage_ranks import documents
from regard.lens import Answer
from regard.lens.naming.head_scores import score_heads
from regard.lens.naming.heads import Heads
from regard.lens.naming.probe import random_twice
from regard.lens.naming.repeats import Repeats, with_targets
from regard.lens.naming.roles import Role
from regard.models import LanguageModel
from regard.record import Layer

Head = tuple[int, int]
Pairs = list[tuple[float, ...]]
Shares = list[dict[Head, float]]

ROOT = Path(__file__).parents[1]
LIMITS = {Role.INDUCTION: 0.2, Role.PREVIOUS: 0.3}
SEEDS, PROBED = range(10, 14), range(3)
NEEDED, WORDS = 3, 32
TEXTS = {
    "docs/00-why-look-back.md": 600,
    "docs/16-is-attention-an-explanation.md": 600,
    "docs/stories.md": 600,
    "docs/definitions.md": 1500,
    "tools/passage_ranks.py": 1000,
    "manuals": 300,
    "nature": 2000,
    "people": 1000,
    "places": 400,
    "rules": 700,
}
"""Files, or genres of `passage_ranks`, and how many of their first tokens are read at most."""


def average_precision(scores: Mapping[Head, float], true: Collection[Head]) -> float:
    """Return the mean, over the true heads, of the part of true ones among those ranked as high."""
    ranked = sorted(scores, key=lambda head: -scores[head])
    places = [place for place, head in enumerate(ranked, 1) if head in true]
    return sum(found / place for found, place in enumerate(places, 1)) / len(places)


def aps_of(scores: Iterable[Mapping[Head, float]], true: Collection[Head]) -> tuple[float, ...]:
    """Return the average precision of several scores."""
    return tuple(average_precision(one, true) for one in scores)


def text_of(name: str) -> str:
    """Return a file's text, or all documents of a genre."""
    if "/" in name:
        return (ROOT / name).read_text("utf-8")
    return "\n\n".join(one.text for one in documents() if one.genre == name)


def heads_of(model: LanguageModel, ids: list[int]) -> tuple[Heads, dict[Role, Shares]]:
    """Return the heads as they are named, and by role their shares, whole and beside the sinks."""
    text, names = torch.tensor(ids), tuple(model.tokenizer.tokens(ids))
    asked = with_targets(text, following=True)

    def read(layer: Layer) -> tuple[Heads, tuple[torch.Tensor, torch.Tensor]]:
        found, back = layer.pattern.read(Repeats(text, following=True), regard.readouts.Lag(1))
        shares = found[..., asked].mean(-1).flatten(), back.weights[..., 1:].mean(-1).flatten()
        return score_heads([layer], (names,), progress=False), shares

    results = [one for _, one in model.read_layers(text, read)[0]]
    heads = Heads([head for some, _ in results for head in some])
    places = [(one.layer, one.head) for one in heads]
    shares: dict[Role, Shares] = {}
    for role, own in zip(LIMITS, zip(*(one for _, one in results), strict=True), strict=True):
        both = torch.cat(own).tolist(), [one.share(role) or 0.0 for one in heads]
        shares[role] = [dict(zip(places, one, strict=True)) for one in both]
    return heads, shares


def needed(model: LanguageModel, lines: list[list[int]], count: int) -> set[Head]:
    """Return the heads that the second copies need most of the first `NEEDED` lines, cut short."""
    changes = []
    lines = [line[:WORDS] * 2 for line in lines]
    for number, line in enumerate(lines[:NEEDED]):
        others = [torch.tensor(other) for other in lines if other is not line]
        again = [place for place, token in enumerate(line) if token in line[:place]]
        answer = Answer(slice(again[1], again[-1] + 1))  # the first of it cannot be known
        mean = regard.lens.contexts(model, others).mean()
        effects = regard.lens.effects(model, torch.tensor(line), answer, by=mean, progress=False)
        changes.append(effects.values)
        print(f"line {number}: {most_needed(effects.values, count)}", flush=True)
    return {*most_needed(torch.stack(changes).mean(0), count)}


def most_needed(changes: Tensor, count: int) -> list[Head]:
    """Return the heads without which a log-probability falls most."""
    heads = changes.shape[1]
    order = changes.flatten().argsort()[:count].tolist()
    return [(place // heads, place % heads) for place in order]


def row(name: str, tokens: int, heads: Heads, true: Mapping[Role, set[Head]], aps: Pairs) -> str:
    """Return a row of the table: of each role how many are named, rightly and falsely."""
    cells = [name, str(tokens)]
    for (role, own), (whole, beside) in zip(true.items(), aps, strict=True):
        named = {(one.layer, one.head) for one in heads if one.role is role}
        found = f"{len(named & own)} of {len(own)}"
        cells += [found, str(len(named - own)), f"{whole:.2f} → {beside:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Print the table, then the average precision of induction against what is needed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    model = regard.models.open(parser.parse_args().model)
    lines = [random_twice(model, seed)[0] for seed in SEEDS]
    shares = [heads_of(model, line)[1] for line in lines]
    true: dict[Role, set[Head]] = {}
    for role, limit in LIMITS.items():
        total = {head: sum(one[role][0][head] for one in shares) for head in shares[0][role][0]}
        true[role] = {head for head, share in total.items() if share > limit * len(lines)}
        print(f"{role}: {len(true[role])} of {len(total)}: {sorted(true[role])}")
    texts = {name: [*model.read(text_of(name)).ids[:most]] for name, most in TEXTS.items()}
    texts |= {f"`probe`, seed {seed}": random_twice(model, seed)[0] for seed in PROBED}
    of_induction: dict[str, Shares] = {}
    every: list[Pairs] = []
    for name, ids in texts.items():
        heads, scores = heads_of(model, ids)
        of_induction[name] = scores[Role.INDUCTION]
        every.append([aps_of(scores[role], true[role]) for role in LIMITS])
        print(row(name, len(ids), heads, true, every[-1]), flush=True)
    means = torch.tensor(every[: len(TEXTS)]).mean(0).tolist()
    print("mean of the texts:", *(f"{a:.3f} → {b:.3f}" for a, b in means), flush=True)
    most = needed(model, lines, len(true[Role.INDUCTION]))
    print(f"needed: {sorted(most)}")
    for name, own in of_induction.items():
        print(f"{name}: {' → '.join(f'{ap:.2f}' for ap in aps_of(own, most))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
