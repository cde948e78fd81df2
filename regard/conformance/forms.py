"""The forms of a report: text for a terminal, JSON for a program, HTML for a reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from html import escape

from regard.conformance.grading import Area, Outcome, Report

__all__ = ["as_html", "as_json", "as_text"]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
.differs { font-weight: bold; text-decoration: underline; }
pre { overflow-x: auto; padding: 1rem; border: 1px solid; }
"""


def as_text(report: Report) -> str:
    """A line an area, and the first failing case of each area that differs."""
    width = max(len(area.name) for area in report.areas)
    lines = [report.target, _conditions(report), ""]
    lines += [
        f"{area.name:{width}}  {_grade(area):18}  {_found(area)}".rstrip() for area in report.areas
    ]
    lines += ["", _summary(report)]
    for area in report.areas:
        failing = _failing(area)
        if failing:
            more = f" (and {len(failing) - 1} more of this area)" if failing[1:] else ""
            lines += ["", f"# {area.name}: {failing[0].case}{more}", failing[0].snippet]
    return "\n".join(lines)


def as_json(report: Report) -> str:
    """Everything, each failing case with its lines."""
    areas = [
        {"name": area.name, "status": area.status, "cases": [asdict(one) for one in area.outcomes]}
        for area in report.areas
    ]
    whole = {**asdict(report), "conforms": report.conforms, "counted": report.counted}
    return json.dumps({**whole, "areas": areas}, ensure_ascii=False, indent=1)


def as_html(report: Report) -> str:
    """A page that needs nothing else: areas, folded cases, each failing one with its lines."""
    name = escape(report.target)
    rows = "\n".join(_row(area) for area in report.areas)
    failing = [one for area in report.areas for one in _failing(area)]
    cases = "\n".join(
        f"<h2>{escape(one.area)}: {escape(one.case)}</h2>\n<pre>{escape(one.snippet)}</pre>"
        for one in failing
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name}: does it compute attention?</title>
<style>{_STYLE}</style>
<h1>{name}</h1>
<p>{escape(_conditions(report))}</p>
<p>{escape(_summary(report))}</p>
<table>
<tr><th scope="col">area</th><th scope="col">grade</th><th scope="col">what was found</th></tr>
{rows}
</table>
{cases}
</html>
"""


def _row(area: Area) -> str:
    cases = "".join(f"<li>{escape(_line(one))}</li>" for one in area.outcomes)
    found = escape(_found(area)) or f"{len(area.outcomes)} cases"
    return (
        f'<tr><th scope="row">{escape(area.name)}</th><td class="{area.status.split()[0]}">'
        f"{escape(_grade(area))}</td><td><details><summary>{found}</summary><ul>{cases}</ul>"
        "</details></td></tr>"
    )


def _line(one: Outcome) -> str:
    numbers = ""
    if one.error is not None:
        numbers = f", error {one.error:.1e}, allowed {one.allowed:.1e}"
    return f"{one.case}: {one.status}{numbers}" + (f"; {one.words}" if one.words else "")


def _conditions(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    return (
        f"{versions}; called like {report.signature}'s; {report.dtype} on {report.device}; "
        f"{report.seconds:.1f} s"
    )


def _summary(report: Report) -> str:
    counted = ", ".join(f"{number} {status}" for status, number in report.counted.items())
    verdict = "Nothing that it offers differs from the definition."
    if not report.conforms:
        first = next(area for area in report.areas if area.status == "differs")
        verdict = f"It differs from the definition; the simplest area that does is {first.name}."
    return f"{len(report.areas)} areas: {counted}. {verdict}"


def _grade(area: Area) -> str:
    counted = area.counted
    some, offered = counted[area.status], len(area.outcomes) - counted.get("not offered", 0)
    return area.status if some >= offered else f"{area.status}, {some} of {offered}"


def _found(area: Area) -> str:
    """The number that decides, or the words of what did not simply pass."""
    return "; ".join(_parts(area))


def _parts(area: Area) -> Iterator[str]:
    if area.status == "not offered":
        yield area.outcomes[0].words
        return
    one = area.closest
    if one is not None and one.error is not None and one.allowed is not None:
        yield f"error {one.error:.1e} of {one.allowed:.1e} allowed ({one.case})"
    by_words: dict[str, list[str]] = {}
    for one in area.outcomes:
        without_number = one.status == "differs" and one.error is None
        if one.words and (without_number or one.status in {"noted", "refused"}):
            by_words.setdefault(one.words, []).append(one.case)
    for words, names in by_words.items():
        which = f"{names[0]} and {len(names) - 1} more" if names[2:] else ", ".join(names)
        yield f"{which}: {words}"


def _failing(area: Area) -> list[Outcome]:
    return [one for one in area.outcomes if one.status == "differs"]
