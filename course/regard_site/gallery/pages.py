"""Exhibits that are a page of the explorer: what is copied, what a pronoun looks at, sinks."""

from __future__ import annotations

from urllib.parse import urlencode

import torch
from torch import Tensor
from torch.nn import functional as F

import regard
from regard.gpt import GPT, Tokenizer, load
from regard.gpt.stories import Kind, stories
from regard.page.example import EXAMPLES
from regard_site.gallery.exhibit import Exhibit, Progress

__all__ = ["copying", "pronoun", "sinks"]

_SEED, _STORIES, _LONGEST = 0, 60, 320
_LAYERS, _HEADS, _DIM, _TOKENS = 12, 12, 64, 96  # of the sinks


def copying(_: Progress) -> Exhibit:
    """Words that come a second time."""
    return Exhibit(
        name="induction",
        title="Induction: what came next the last time",
        text=(
            "A parrot says a sentence again. At “red” two of the five heads of layer 1 look most "
            "at “kite”, which followed “red” the first time, and the model says it. Below each "
            "head stands in blue what the answer loses without it."
        ),
        frame=_live(EXAMPLES["copying"]),
    )


def pronoun(_: Progress) -> Exhibit:
    """The pronoun of a held-out story whose name a head looks at most."""
    model, tokenizer = load()
    weight, text, layer, head, name = max(_on_names(model, tokenizer), key=lambda one: one[0])
    return Exhibit(
        name="pronoun",
        title="What a pronoun looks at",
        text=(
            f"The next word of this story is a pronoun, and the story says for whom: “{name}”. "
            f"Head {layer}·{head} puts {weight:.2f} of its weight there. Of all pronouns in the "
            f"first {_STORIES} held-out stories it is the one whose name is looked at most. What "
            "is looked at need not be needed: *What matters here?* measures that."
        ),
        frame=_live(text, layer=layer, head=head),
    )


def _live(text: str, *, layer: int | None = None, head: int = 0) -> str:
    fields = {"t": text, "p": "opening"}
    if layer is not None:
        fields |= {"l": str(layer), "h": str(head)}
    return f"live.html#{urlencode(fields)}"


def _on_names(model: GPT, tokenizer: Tokenizer) -> list[tuple[float, str, int, int, str]]:
    """The largest weight on the name of each pronoun, with the text before the pronoun."""
    largest = []
    for story in stories(_SEED, _STORIES):
        for link in story.links:
            start, stop = link.deciding[-1]
            text = story.text[: link.decided[0]].rstrip()
            if link.kind is Kind.PRONOUN and len(text) < _LONGEST:
                weight, layer, head = _largest(model, tokenizer, text, (start, stop))
                largest.append((weight, text, layer, head, story.text[start:stop]))
    return largest


@torch.no_grad()
def _largest(
    model: GPT, tokenizer: Tokenizer, text: str, name: tuple[int, int]
) -> tuple[float, int, int]:
    """The largest weight of a text's last token on a name in it, and the head that has it."""
    ids = tokenizer.encode(text)
    before = [len(tokenizer.encode(text[:at])) for at in name]
    _, patterns = model.with_patterns(torch.tensor(ids))
    weights = torch.stack([one[:, -1, before[0] : before[1]].sum(-1) for one in patterns])
    layer, head = divmod(int(weights.argmax()), weights.shape[1])
    return weights.max().item(), layer, head


def sinks(progress: Progress) -> Exhibit:
    """A report of 144 heads that more and more look at the first token."""
    torch.manual_seed(0)
    names = [f" {at}" for at in range(_TOKENS)]
    with regard.record(tokens=names) as recording:
        for layer in range(_LAYERS):
            query, key, value = _make_sink(layer)
            F.scaled_dot_product_attention(query, key, value, is_causal=True)
    regard.report(
        recording, progress.folder / "report.html", title="sinks, planted", start="l=10&h=10"
    )
    return Exhibit(
        name="sinks",
        title="Sinks: weight that has nowhere else to go",
        text=(
            f"The shape of the small GPT-2: {_LAYERS} layers of {_HEADS} heads, {_TOKENS} "
            "tokens. Its queries and keys are made up, as no weights of GPT-2 come with the "
            "package: random, with a direction added that every query has and the first key "
            "alone, the more the deeper the layer and the further right the head. So the first "
            "column takes what no other key asks for (Xiao et al. 2023, arXiv:2309.17453). "
            "`regard explore --model openai-community/gpt2` shows the same of GPT-2 itself."
        ),
        frame="gallery/sinks/report.html",
    )


def _make_sink(layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (1, H, T, D) of a layer; heads differ in their sink's strength."""
    query, key, value = torch.randn(3, 1, _HEADS, _TOKENS, _DIM)
    direction = F.normalize(torch.randn(1, _HEADS, 1, _DIM), dim=-1)
    strength = layer / (_LAYERS - 1) * torch.linspace(0.2, 1, _HEADS)[:, None, None]
    query = query + 8 * direction
    key[:, :, :1] += 9 * strength * direction
    return query, key, value
