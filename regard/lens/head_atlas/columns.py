"""The numbers of a head in an atlas: names, titles, and what each says."""
# ruff: noqa: E501 - a table with a line a column

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["COLUMNS", "Column"]

Unit = Literal["share", "lead", "nats", "tokens", "norm", "logit", "score"]
Group = Literal["rest", "roles", "reach", "moved", "probes", "headvis"]


@dataclass(frozen=True)
class Column:
    """A number of each head."""

    name: str
    title: str
    meaning: str
    """What it says, in a sentence."""
    unit: Unit
    group: Group


def _lead(name: str, what: str) -> Column:
    meaning = (
        f"{what}: the part of the weight beside the sinks that the strongest control leaves "
        "elsewhere and the head brings there."
    )
    return Column(name, name.replace("_", " "), meaning, "lead", "roles")


COLUMNS = (
    Column("resting", "at rest", "Share of a row on the keys on which the head rests.", "share", "rest"),
    Column("rest_first", "rest: first token", "Share of a row on the first token, where the head rests on it.", "share", "rest"),
    Column("rest_separator", "rest: separators", "Share of a row on punctuation and line breaks on which the head rests.", "share", "rest"),
    Column("rest_other", "rest: others", "Share of a row on other keys on which the head rests.", "share", "rest"),
    _lead("induction", "Looks at what came after an earlier copy of its token"),
    _lead("duplicate_token", "Looks at earlier copies of its token"),
    _lead("previous_token", "Looks at the token before"),
    _lead("next_token", "Looks at the token after"),
    _lead("current_token", "Looks at its own token"),
    _lead("separator", "Looks at punctuation and line breaks"),
    Column("first_token", "first token", "Looks at the first token, sinks included: the lead over a uniform head.", "lead", "roles"),
    Column("entropy", "entropy", "Entropy of a row beside the sinks.", "nats", "reach"),
    Column("distance", "distance", "How far away the weight beside the sinks lies.", "tokens", "reach"),
    Column("window", "window", "Distance within which 90 % of the weight beside the sinks lies, rounded up to a power of two less one.", "tokens", "reach"),
    Column("far", "far", "Share of the weight beside the sinks that lies 128 tokens away or more.", "share", "reach"),
    Column("moved", "moved", "Sum over the keys beside the sinks of a row: weight times the norm of the value behind W_O.", "norm", "moved"),
    Column("toward", "toward", "What the head adds to the logit of the token that comes next, the scale of the final norm frozen.", "logit", "moved"),
    Column("effect", "saves", "Loss of a prediction that the head saves, to first order, over the documents drawn for it.", "nats", "moved"),
    Column("copying", "copying", "Whether it writes what it reads: eigenvalues of its circuit from token to token, from −1 to 1; of the weights alone.", "score", "probes"),
    Column("retrieval", "retrieval", "Fraction of an answer's tokens that it looks up in a made-up fact far back, less what it does where the fact is another.", "score", "probes"),
    Column("self_attention_score", "HeadVis: self", "Mean weight of a token on itself, sinks included.", "share", "headvis"),
    Column("prev_token_score", "HeadVis: previous", "Mean weight on the token before, sinks included.", "share", "headvis"),
    Column("pattern_entropy", "HeadVis: entropy", "Mean entropy of a row, sinks included.", "nats", "headvis"),
    Column("qk_distance", "HeadVis: distance", "Mean distance, sinks included.", "tokens", "headvis"),
    Column("qk_distance_variance", "HeadVis: variance", "Mean square of the distance less the square of its mean, sinks included.", "tokens", "headvis"),
    Column("induction_score", "HeadVis: induction", "Mean weight on what came after an earlier copy of the token, weights below 0.01 left out.", "share", "headvis"),
)  # fmt: skip
"""In the order in which they are shown."""
