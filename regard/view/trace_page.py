"""A trace as one HTML file: the document coloured by any measure, the first tokens, and curves.

It holds no script: what is shown follows from two rows of radio buttons by the style alone. Each
token has its values as custom properties, in hundredths of the largest of their view.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator

from regard.lens import Deletion
from regard.view.trace_report import (
    MEANINGS,
    TracedText,
    after,
    curves_of,
    figure,
    in_context,
    signed,
)

__all__ = ["trace_page"]

_FIRST = 12  # tokens in a list
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 480, 230, 46, 12, 12, 34  # of a picture

_STYLE = """
:root { color-scheme: light dark; --paper: #faf9f6; --panel: #fff; --ink: #1c1b1a; --soft: #67635c;
  --line: #e2dfd7; --more: #e5793a; --less: #4790bf; --accent: #b3431e; --attention: #b3431e;
  --difference: #00736a; --moved: #7444b4; --toward: #22658c; --random: #8a857c; }
@media (prefers-color-scheme: dark) { :root { --paper: #141312; --panel: #1c1b19; --ink: #ece9e3;
  --soft: #a39d93; --line: #35322d; --more: #a9491a; --less: #2f6f99; --accent: #f08a5d;
  --attention: #f08a5d; --difference: #58c3b6; --moved: #bd96fe; --toward: #7cc0e8;
  --random: #8d877d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 14px/1.5 Inter, system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif;
  font-variant-numeric: tabular-nums; }
header, main { max-width: 1360px; margin: 0 auto; padding: 0 28px; }
header { padding-top: 24px; }
h1 { font-size: 21px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 11px; letter-spacing: .07em; text-transform: uppercase; color: var(--soft);
  margin: 0 0 8px; }
p { margin: 0 0 8px; }
.note { color: var(--soft); font-size: 12.5px; }
.asked { margin: 14px 0 6px; white-space: pre-wrap; }
blockquote { margin: 0 0 14px; padding: 6px 14px; border-left: 3px solid var(--accent);
  background: var(--panel); overflow-wrap: anywhere; white-space: pre-wrap; }
.bar { position: sticky; top: 0; z-index: 2; background: var(--paper);
  border-bottom: 1px solid var(--line); }
.bar > div { max-width: 1360px; margin: 0 auto; padding: 10px 28px; display: flex; flex-wrap: wrap;
  gap: 8px 22px; align-items: center; }
fieldset { border: 1px solid var(--line); border-radius: 8px; padding: 0; margin: 0; display: flex;
  overflow: hidden; background: var(--panel); }
legend { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
label { padding: 5px 13px; cursor: pointer; white-space: nowrap; }
label + input + label, input + label { border-left: 1px solid var(--line); }
legend + input + label { border-left: 0; }
input { position: absolute; opacity: 0; pointer-events: none; }
input:checked + label { background: var(--accent); color: var(--panel); }
input:focus-visible + label { outline: 2px solid var(--accent); outline-offset: -3px;
  background: var(--line); color: var(--ink); }
.scale { display: inline-flex; align-items: center; gap: 7px; color: var(--soft);
  font-size: 12.5px; white-space: nowrap; }
.scale i { width: 92px; height: 12px; border-radius: 3px;
  background: linear-gradient(to right, transparent, var(--more)); }
.scale i.both { background: linear-gradient(to right, var(--less), transparent, var(--more)); }
main { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 500px); gap: 26px 40px;
  padding-top: 20px; padding-bottom: 44px; align-items: start; }
.text { font: 16px/1.75 "Noto Serif", "Iowan Old Style", Charter, Georgia, "Liberation Serif",
  serif; white-space: pre-wrap; overflow-wrap: anywhere; }
.text i { font-style: normal; border-radius: 3px; padding: 2px 0; --v: 0;
  background-image:
    linear-gradient(color-mix(in srgb, var(--more) calc(var(--v) * 1%), transparent) 0 0),
    linear-gradient(color-mix(in srgb, var(--less) calc(var(--v) * -1%), transparent) 0 0); }
.text i.sink { background: none !important; text-decoration: underline dotted var(--soft);
  text-underline-offset: 4px; color: var(--soft); }
.text s { color: var(--soft); text-decoration: none; opacity: .6; }
.text i:target { outline: 2px solid var(--accent); outline-offset: 1px; scroll-margin: 40vh; }
.between { margin-top: 22px; padding-top: 14px; border-top: 1px solid var(--line); }
.between .text { font-size: 14px; }
aside > section { margin-bottom: 28px; }
table { border-collapse: collapse; width: 100%; }
th { font-weight: 500; color: var(--soft); font-size: 12px; text-align: right;
  padding: 2px 0 2px 12px; }
td { text-align: right; padding: 3px 0 3px 12px; border-top: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
.list td:last-child { text-align: left; width: 99%; max-width: 0; overflow: hidden;
  text-overflow: ellipsis; color: var(--soft); }
.list td b { color: var(--ink); }
td a { color: var(--accent); text-decoration: none; }
td a:hover { text-decoration: underline; }
.swatch { display: inline-block; width: 18px; height: 0; border-top: 3px solid; margin-right: 8px;
  vertical-align: middle; }
.swatch.random { border-top-style: dashed; }
.scroll { overflow-x: auto; }
svg { width: 100%; height: auto; display: block; margin-bottom: 8px; }
svg text { fill: var(--soft); font-size: 12px; }
svg path { fill: none; stroke-width: 2; stroke-linejoin: round; opacity: .55; }
svg .random { stroke-dasharray: 5 4; opacity: .9; }
svg line { stroke: var(--line); }
.view { display: none; }
@media (max-width: 1000px) { main { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 560px) {
  header, main, .bar > div { padding-left: 16px; padding-right: 16px; }
  label { padding: 6px 9px; } .bar { position: static; } .text { font-size: 15px; }
  .scale { flex-basis: 100%; } table { font-size: 13px; } td, th { padding-left: 8px; } }
@media print { .bar { position: static; } }
"""


def trace_page(text: TracedText, name: str, question: str) -> str:
    """Return the page of a trace.

    Args:
        text: the trace and its text.
        name: the model.
        question: the question.
    """
    found = text.found
    hops = sorted({0, found.hops})
    views = [(measure, at) for at in hops for measure in found.shares]
    first = "moved" if "moved" in found.shares else "attention"
    own = found.document[1] - found.document[0]
    about = (
        f"{len(found.tokens):,} tokens, {own:,} of the document · {text.forwards} forward passes"
    )
    behind = found.document[1], len(found.tokens)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What the answer took – {html.escape(name)}</title>",
        f"<style>{_STYLE}{_switches(views)}</style></head><body>",
        "<header><h1>What the answer took from the document</h1>",
        f'<p class="note">{html.escape(name)} · {about}</p>',
        f'<p class="asked">{html.escape(question)}</p>',
        f"<blockquote>{html.escape(text.answer.strip())}</blockquote></header>",
        '<div class="bar"><div>',
        _radios("Measure", "m", {one: one for one in found.shares}, first),
        _radios("Through tokens between", "h", {str(at): after(at) for at in hops}, str(hops[-1])),
        *(_scale(text, *view) for view in views),
        "</div></div><main><article>",
        f'<div class="text">{_tokens(text, views, found.document)}</div>',
        '<div class="between"><h2>Question and answer</h2>',
        f'<div class="text">{_tokens(text, views, behind)}</div></div></article><aside>',
        "<section><h2>The tokens with most</h2>",
        *(_list(text, *view) for view in views),
        "</section>",
        *_curves(text, hops),
        f"<section><h2>What the colours say</h2>{_meanings(text)}</section>",
        "</aside></main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _class(measure: str, hops: int) -> str:
    return f"{measure}-{hops}"


def _switches(views: list[tuple[str, int]]) -> str:
    """Return the rules that show one view."""
    rules = []
    for number, (measure, hops) in enumerate(views):
        on = f"body:has(#m-{measure}:checked):has(#h-{hops}:checked)"
        rules.append(f"{on} .text i {{ --v: var(--v{number}, 0); }}")
        rules.append(f"{on} .{_class(measure, hops)} {{ display: block; }}")
        rules.append(f"{on} span.{_class(measure, hops)} {{ display: inline-flex; }}")
    for measure in dict.fromkeys(one for one, _ in views):
        chosen = f"body:has(#m-{measure}:checked)"
        rules.append(f"{chosen} svg .{measure} {{ stroke-width: 3.5; opacity: 1; }}")
        rules.append(f"{chosen} tr.{measure} td {{ font-weight: 600; }}")
    rules.extend(
        f"body:has(#h-{hops}:checked) .curves-{hops} {{ display: block; }}"
        for hops in dict.fromkeys(one for _, one in views)
    )
    return "\n".join(rules)


def _radios(legend: str, name: str, choices: dict[str, str], chosen: str) -> str:
    rows = "".join(
        f'<input type="radio" name="{name}" id="{name}-{one}"{" checked" * (one == chosen)}>'
        f'<label for="{name}-{one}">{shown}</label>'
        for one, shown in choices.items()
    )
    return f"<fieldset><legend>{legend}</legend>{rows}</fieldset>"


def _scale(text: TracedText, measure: str, hops: int) -> str:
    top = figure(measure, text.largest(measure, hops))
    both = measure in {"difference", "toward"}
    low = f"−{top.lstrip('+')}" if both else "0"
    kind = ' class="both"' if both else ""
    return f'<span class="scale view {_class(measure, hops)}">{low} <i{kind}></i> {top}</span>'


def _tokens(text: TracedText, views: list[tuple[str, int]], part: tuple[int, int]) -> str:
    """Return an element a token, one after another; white space at the ends is left out."""
    columns = [(measure, text.values(measure, hops)) for measure, hops in views]
    tops = [text.largest(measure, hops) for measure, hops in views]
    sinks, written = set(text.found.sinks), []
    for start, stop in text.places:
        if not part[0] <= start < part[1]:
            continue
        sums = [sum(values[start:stop]) for _, values in columns]
        said = f"{start}" + ", a sink" * bool(sinks & set(range(start, stop)))
        for measure in text.found.shares:
            if measure == "difference" and start >= text.found.document[1]:
                continue  # it is of the document's tokens
            own = (value for view, value in zip(views, sums, strict=True) if view[0] == measure)
            said += f"\n{measure} {' → '.join(figure(measure, value) for value in own)}"
        parts = (round(100 * one / top) for one, top in zip(sums, tops, strict=True))
        style = ";".join(
            f"--v{at}:{min(max(own, -100), 100)}" for at, own in enumerate(parts) if own
        )
        before, shown, behind = _visible(text.pieces[start])
        kind = ' class="sink"' if sinks & set(range(start, stop)) else f' style="{style}"'
        shown = "<s>↵</s>" if shown == "↵" else shown
        written.append(f'{before}<i id="t{start}"{kind} title="{said}">{shown}</i>{behind}')
    return "".join(written).strip()


def _visible(piece: str) -> tuple[str, str, str]:
    r"""Return what stands before a token's colour, the token, and what stands after it.

    White space before a word is not coloured; a line feed has a sign, which can be.

    >>> _visible(" <b"), _visible("\n\n")
    ((' ', '&lt;b', ''), ('', '↵', '\n\n'))
    """
    bare = piece.strip()
    if not bare:
        return ("", "↵", piece) if "\n" in piece else ("", piece, "")
    at = piece.index(bare)
    return piece[:at], html.escape(bare), piece[at + len(bare) :]


def _list(text: TracedText, measure: str, hops: int) -> str:
    rows = []
    values = text.values(measure, hops)
    for at in text.found.ranked(measure, hops)[:_FIRST]:
        before, token, behind = (html.escape(part) for part in in_context(text, at, 4))
        rows.append(
            f'<tr><td><a href="#t{at}">{at}</a></td><td>{figure(measure, values[at])}</td>'
            f"<td>{before}<b>{token}</b>{behind}</td></tr>"
        )
    head = f"<tr><th>token</th><th>{measure}</th><th></th></tr>"
    return f'<table class="list view {_class(measure, hops)}">{head}{"".join(rows)}</table>'


def _curves(text: TracedText, hops: list[int]) -> Iterator[str]:
    lost = text.lost
    if lost is None:
        return
    yield "<section><h2>What the answer loses if they are deleted</h2>"
    for at in hops:
        curves = curves_of(lost, text.found.shares, at)
        rows = "".join(
            f'<tr class="{name}"><td><span class="swatch {name}" '
            f'style="border-color:var(--{name})"></span>{name}</td>'
            + "".join(
                f"<td>{signed(value)}</td>"
                for value in (lost.means[order], *lost.changes[order].tolist())
            )
            + "</tr>"
            for name, order in curves
        )
        head = "".join(f"<th>{count}</th>" for count in lost.counts)
        yield (
            f'<div class="view curves-{at}">{_picture(lost, curves)}<div class="scroll"><table>'
            f"<tr><th>deleted</th><th>mean</th>{head}</tr>{rows}</table></div></div>"
        )
    yield (
        '<p class="note">The first tokens of an order are taken out of the text, and the model '
        "reads what is left: the change of the answer’s log-probability, in nats, which is "
        f"{signed(lost.log_probability)} with the whole text. The lower a curve, the more the "
        "answer rests on what the measure names. random: a mean over orders at random. "
        f"{lost.forwards} forward passes.</p></section>"
    )


def _picture(lost: Deletion, curves: list[tuple[str, str]]) -> str:
    """Draw curves: how many are deleted, in steps, and what is lost."""
    values = {name: [0.0, *lost.changes[order].tolist()] for name, order in curves}
    low = min(0.0, *(min(one) for one in values.values()))
    high = max(0.0, *(max(one) for one in values.values()))
    span = (high - low) or 1.0
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x(step: int) -> float:
        return _LEFT + wide * step / len(lost.counts)

    def y(value: float) -> float:
        return _TOP + tall * (high - value) / span

    ticks = _ticks(low, high)
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(one):.1f}" y2="{y(one):.1f}"/>'
        f'<text x="{_LEFT - 8}" y="{y(one) + 4:.1f}" text-anchor="end">'
        f"{f'{one:g}'.replace('-', '−')}</text>"
        for one in ticks
    )
    labels = "".join(
        f'<text x="{x(step):.1f}" y="{_HEIGHT - _BOTTOM + 17}" text-anchor="middle">{count}</text>'
        for step, count in enumerate((0, *lost.counts))
    )
    lines = "".join(
        f'<path class="{name}" style="stroke:var(--{name})" d="M'
        + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in enumerate(one))
        + '"/>'
        for name, one in values.items()
    )
    title = (
        f'<text x="{_LEFT + wide / 2}" y="{_HEIGHT - 2}" text-anchor="middle">tokens deleted</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Change of the answer’s '
        f'log-probability by tokens deleted; the table has the numbers">{grid}{labels}{lines}'
        f"{title}</svg>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range, about five.

    >>> _ticks(-11.3, 0.4)
    [-10.0, -5.0, 0.0]
    """
    rough = (high - low) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [power * part for part in (1, 2, 5, 10)]
    step = next(one for one in steps if one >= rough * 0.999)
    numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [round(number * step, 10) for number in numbers]


def _meanings(text: TracedText) -> str:
    found = text.found
    rows = [f"<p><b>{name}</b>: {MEANINGS[name]}.</p>" for name in found.shares]
    rows += [
        f"<p><b>{name}</b> is not known of this model: {html.escape(why)}</p>"
        for name, why in found.missing.items()
    ]
    if found.hops:
        rows.append(
            f"<p><b>{after(found.hops)}</b>: what falls on question and answer themselves is "
            "propagated to where those tokens looked, or moved from. On them are, "
            + "; ".join(
                f"of {name}, {figure(name, found.between(name, 0))} directly and "
                f"{figure(name, found.between(name))} {after(found.hops)}"
                for name in found.shares
                if name != "difference"
            )
            + ".</p>"
        )
    if "difference" in found.shares:
        rows.append(f"<p>The neutral question and answer are {html.escape(text.neutral)}.</p>")
    rows.append(
        "<p>Colour is a token’s part of the largest, which the scale names; point at a token for "
        "its numbers, directly → through hops. Underlined: sinks, on which heads rest whatever "
        "is asked; they are neither coloured nor deleted.</p>"
    )
    return f'<div class="note">{"".join(rows)}</div>'
