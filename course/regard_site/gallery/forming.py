"""How the two heads of page 10's model form, update by update, in several training runs."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from regard_site.gallery.exhibit import Exhibit, Progress, write_picture
from regard_site.sources import ROOT

__all__ = ["forming", "run_page"]

_PAGE = "10-what-heads-learn"
_RUNS, _UPDATES = 5, 400
_FORMED = 0.5  # nats a thing: below it, the second head finds what is to come
_CURVES = [
    "the loss, in nats a thing",
    "first head: weight on the token before",
    "second head: weight on the thing to come",
]


def forming(progress: Progress) -> Exhibit:
    """Train the page's model with several seeds, and write all patterns as one picture.

    A row of the picture is a head, a column is a measured update.
    """
    page = run_page()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model gains nothing from more
    try:
        runs = []
        for seed in range(_RUNS):
            runs.append(_train(page, seed))
            progress.say(f"{seed + 1} of {_RUNS} training runs")
    finally:
        torch.set_num_threads(threads)
    patterns = torch.stack([patterns for _, patterns in runs])  # (runs, M, layers, T, T)
    rows = patterns.permute(2, 0, 3, 1, 4).flatten(3).flatten(0, 2)  # a layer's heads side by side
    write_picture(progress.folder / "heads.png", rows.sqrt())
    measured = torch.tensor([numbers for numbers, _ in runs])  # (runs, M, 4)
    steps, curves = measured[0, :, 0].int().tolist(), measured[..., 1:].unbind(-1)
    return Exhibit(
        name="forming",
        title="How heads form",
        text=(
            f"Five training runs, a column each, of the model of [page 10](../{_PAGE}.html): two "
            "layers of one head, which learn from texts of pairs such as “red kite” to say the "
            "thing that goes with a colour. Each picture is a head's pattern on one held-out text, "
            "above that of the first head, below that of the second. The first head turns to the "
            "token before, the second to the thing that followed the colour earlier, and the loss "
            "falls, all within a few dozen updates: alone, neither head is of use. When it happens "
            f"is chance: {_formed(steps, curves[0])}"
        ),
        viewer="forming.js",
        data={
            "steps": steps,
            "columns": _RUNS,
            "captions": _captions(curves[1], curves[2]),
            "curves": [
                {"title": title, "most": max(1, round(curve.max().item())), "lines": curve.tolist()}
                for title, curve in zip(_CURVES, curves, strict=True)
            ],
        },
    )


def run_page() -> dict[str, Any]:
    """Run the page; the names that its code defines."""
    folder = ROOT / "docs"
    sys.path.insert(0, str(folder))  # where what runs a page finds what it needs
    names: dict[str, Any] = import_module("pages").run(folder / f"{_PAGE}.md")
    return names


def _train(page: dict[str, Any], seed: int) -> tuple[list[list[float]], Tensor]:
    """What the page's function measures in training, and the patterns then, ``(M, layers, T, T)``.

    It measures by a function of the page, in whose place one stands that keeps the patterns too.
    """
    measure, kept = page["measure"], []

    @torch.no_grad()
    def observe(model: Any, ids: Tensor, same: Tensor) -> Any:
        _, patterns = model(ids[:1])
        kept.append(torch.stack([pattern.dense()[0, 0] for pattern in patterns]))
        return measure(model, ids, same)

    page["measure"] = observe
    try:
        _, numbers = page["train"](2, _UPDATES, seed)
    finally:
        page["measure"] = measure
    return numbers, torch.stack(kept)


def _captions(before: Tensor, on_things: Tensor) -> list[list[str]]:
    """Of each update, below each picture: what the head puts where it is to look in the end."""
    return [
        [f"{weight:.2f} on the token before" for weight in first]
        + [f"{weight:.2f} on the thing to come" for weight in second]
        for first, second in zip(before.T.tolist(), on_things.T.tolist(), strict=True)
    ]


def _formed(steps: list[int], losses: Tensor) -> str:
    """When the loss of each run was first measured to be low."""
    firsts = [
        next((step for step, loss in zip(steps, run, strict=True) if loss < _FORMED), None)
        for run in losses.tolist()
    ]
    said = ", ".join("never" if first is None else str(first) for first in firsts)
    return f"the loss is first below {_FORMED} at the updates {said}."
