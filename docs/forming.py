"""Train the small models of page 10 and store how their heads form.

`python docs/forming.py` runs the page, trains its model of two layers and that of one with five
seeds each, writes docs/forming.json and prints the page's table.
"""

from __future__ import annotations

import json
import sys

from pages import FOLDER, run

PAGE = FOLDER / "10-what-heads-learn.md"
STORED = FOLDER / "forming.json"
SEEDS, SHOWN = 5, 4  # how many, and which one the page trains with
UPDATES, LISTED = 400, 200  # of each training run, and of the page's table


def table(measured: dict[str, list[list[list[float]]]]) -> list[str]:
    """The lines of the page's table."""
    runs = zip(measured["one layer"][SHOWN], measured["two layers"][SHOWN], strict=True)
    return [
        f"| {update} | {one:.2f} | {two:.2f} | {before:.2f} | {on_things:.2f} |"
        for (update, one, *_), (_, two, before, on_things) in runs
        if update <= LISTED
    ]


def main() -> None:
    """Write what was measured: of each update its number, the loss and both weights."""
    train = run(PAGE)["train"]
    measured = {
        name: [train(layers, UPDATES, seed)[1] for seed in range(SEEDS)]
        for name, layers in (("one layer", 1), ("two layers", 2))
    }
    text = json.dumps(measured).replace("]], [[", "]],\n[[").replace("]]], ", "]]],\n")
    STORED.write_text(text + "\n", encoding="utf-8")
    sys.stdout.write("\n".join(table(measured)) + "\n")


if __name__ == "__main__":
    main()
