"""What a notebook and `repr` show of passages: looked at beside needed, a row a passage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import shorten, wrap

from regard.lens import PassageEffects, PassageWeights
from regard.view.elements import heading, line, table, whole
from regard.view.tokens import readable

__all__ = [
    "about_weights",
    "passage_effects_html",
    "passage_effects_text",
    "passage_weights_html",
    "passage_weights_text",
    "quoted",
    "remainders",
    "signed",
    "summary_of",
    "token_range",
]

_WIDTH = 100  # characters of a line
_ROWS = 12  # of a table; the rest is counted
_ABOUT = (
    "Weight: what the queries that predict the answer give to the passage, the first token and "
    "sinks left out; the mean over {heads}."
)


def passage_weights_text(weights: PassageWeights) -> str:
    """A line a passage."""
    return "\n".join(_lines(weights, None))


def passage_effects_text(effects: PassageEffects) -> str:
    """A line a passage, the one that is needed most first."""
    return "\n".join(_lines(effects.weights, effects))


def passage_weights_html(weights: PassageWeights) -> str:
    """A row a passage."""

    def parts() -> Iterable[str]:
        yield heading("Passages", f"{len(weights.passages)}, looked at")
        yield table(*_table(weights, None))
        yield line(about_weights(weights))

    return whole(parts, weights)


def passage_effects_html(effects: PassageEffects) -> str:
    """A row a passage, the one that is needed most first."""

    def parts() -> Iterable[str]:
        yield heading("Passages", f"{len(effects.weights.passages)}, looked at and needed")
        yield table(*_table(effects.weights, effects))
        yield line(summary_of(effects))
        yield line(about_weights(effects.weights))

    return whole(parts, effects)


def summary_of(effects: PassageEffects) -> str:
    """What Δ is, and what it is with all passages hidden."""
    first, stop = effects.hidden_from
    queries = f"quer{'y' if stop == first + 1 else 'ies'} {token_range((first, stop))}"
    return (
        "Δ: change of the answer's log-probability, in nats, where the passage is hidden from "
        f"{queries} in every head; as it is {signed(effects.unchanged)}, with all passages "
        f"hidden {signed(effects.unchanged + effects.without_any)}."
    )


def remainders(weights: PassageWeights) -> list[tuple[str, float]]:
    """What does not lie on passages: names, and mean weights."""
    count = len(weights.sink_keys)
    sinks = f"{count} sink{'' if count == 1 else 's'}"
    rest = (
        ("first token", weights.first),
        (sinks, weights.sinks),
        ("elsewhere", weights.elsewhere),
    )
    return [(name, float(values.nanmean())) for name, values in rest]


def quoted(text: str, width: int) -> str:
    """A text in one line, cut to so many characters."""
    return readable(shorten(text, width, placeholder=" …"))


def signed(value: float) -> str:
    """A change with its sign."""
    return f"{value:+.2f}".replace("-", "−")


def token_range(span: tuple[int, int]) -> str:
    """The first and the last token."""
    first, stop = span
    return str(first) if stop == first + 1 else f"{first}–{stop - 1}"


def about_weights(weights: PassageWeights) -> str:
    """What a weight is, and which heads it is of."""
    layers = f"layer{'' if len(weights.layers) == 1 else 's'} {_listed(weights.layers)}"
    heads = f"head{'' if len(weights.heads) == 1 else 's'} {_listed(weights.heads)}"
    return _ABOUT.format(heads=f"{heads} of {layers}")


def _listed(numbers: Sequence[int]) -> str:
    """Numbers, or the first and the last of many that follow each other."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}–{numbers[-1]}"
    return ", ".join(map(str, numbers))


def _table(
    weights: PassageWeights, effects: PassageEffects | None
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """The names of the columns, and the rows: passages, and what does not lie on any."""
    means = weights.mean.tolist()
    changes = None if effects is None else effects.values.tolist()
    order = weights.order() if effects is None else effects.order()
    width = max(_WIDTH - 30, 20)

    def row(weight: float, change: str, place: str, text: str) -> Sequence[str]:
        return (f"{weight:.3f}", *(() if changes is None else (change,)), place, text)

    rows = [
        row(
            means[number],
            "" if changes is None else signed(changes[number]),
            token_range(weights.passages[number].tokens),
            quoted(weights.passages[number].text, width),
        )
        for number in order[:_ROWS]
    ]
    if len(order) > _ROWS:
        rest = order[_ROWS:]
        total = sum(means[number] for number in rest)
        rows.append(row(total, "", "", f"{len(rest)} more passages, together; frame() has all"))
    rows += [row(weight, "", "", name) for name, weight in remainders(weights)]
    return ("weight", *(() if effects is None else ("Δ",)), "tokens", "passage"), rows


def _lines(weights: PassageWeights, effects: PassageEffects | None) -> Iterator[str]:
    names, rows = _table(weights, effects)
    every = [names, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(names))]
    for row in every:
        cells = [cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        yield "  ".join([*cells, row[-1]]).rstrip()
    if effects is not None:
        yield from wrap(summary_of(effects), _WIDTH)
    yield from wrap(about_weights(weights), _WIDTH)
