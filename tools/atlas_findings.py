"""Print what docs/heads-of-smollm2.md tells, from the atlas that it tells of.

`python tools/atlas_findings.py FOLDER`, where `atlas.json` lies that `regard atlas` wrote.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

import regard

SHOWN = 8  # heads that a line lists
RESTS, RESTS_NOT, ELSEWHERE = 0.5, 0.01, 0.02  # shares of the weight
RETRIEVES = 0.1  # tokens of an answer, at least
RANKED = ("previous_token", "induction", "duplicate_token", "separator", "current_token")

Row = dict[str, Any]


def say(line: str = "") -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def name(row: Row) -> str:
    """Layer and head, as in 5.1."""
    return f"{row['layer']}.{row['head']}"


def rest(rows: list[Row]) -> None:
    """Print how much of the weight rests, by layers, and on what."""
    say("## At rest")
    say(f"more than {RESTS:.0%}: {sum(row['resting'] > RESTS for row in rows)}")
    say(f"less than {RESTS_NOT:.0%}: {sum(row['resting'] < RESTS_NOT for row in rows)}")
    shares: dict[int, list[float]] = {}
    for row in rows:
        shares.setdefault(row["layer"], []).append(row["resting"])
    say("by layer: " + " ".join(f"{layer}:{mean(own):.2f}" for layer, own in shares.items()))
    for kind in ("rest_first", "rest_separator", "rest_other"):
        some = [name(row) for row in rows if row[kind] >= ELSEWHERE]
        share = mean(row[kind] for row in rows)
        say(f"{kind}: mean {share:.4f}; {ELSEWHERE:.0%} or more in {len(some)}: {' '.join(some)}")
    most = max(rows, key=lambda row: row["resting"])
    say(f"rests most: {name(most)} {most['resting']:.3f}, moves {most['moved']:.3f}")
    say(f"moves, the median: {median(row['moved'] for row in rows):.2f}")


def roles(rows: list[Row], held: set[str]) -> None:
    """Print how many heads have which name, and the clearest of each."""
    say("\n## Names")
    for role, count in Counter(row["role"] for row in rows).most_common():
        doubtful = [name(row) for row in rows if row["role"] == role and name(row) not in held]
        say(f"{role}: {count}, no discoveries: {' '.join(doubtful)}")
    for column in (*RANKED, "far"):
        say(f"{column}: {ranked(rows, column)}")


def ranked(rows: list[Row], column: str, *, least: bool = False) -> str:
    """Return the heads with most in a column, or least."""
    known = [row for row in rows if row[column] is not None]
    known.sort(key=lambda row: row[column], reverse=not least)
    return " · ".join(
        f"{name(row)} {row[column]:.3f} ± {row.get(f'{column}_margin') or 0:.3f} "
        f"({row['role']}, rests {row['resting']:.0%})"
        for row in known[:SHOWN]
    )


def moved(rows: list[Row]) -> None:
    """Print what is moved, added to the next token, saved and looked up."""
    say("\n## Moved")
    for column in ("moved", "toward", "effect", "retrieval", "copying"):
        say(f"{column}, most: {ranked(rows, column)}")
        say(f"{column}, least: {ranked(rows, column, least=True)}")
    known = [row for row in rows if row["retrieval"] is not None]
    some = [row for row in known if row["retrieval"] - row["retrieval_margin"] >= RETRIEVES]
    say(f"look up an answer, {RETRIEVES} or more with the whole interval: {len(some)}")


def lost(atlas: regard.lens.Atlas) -> None:
    """Print what is lost without named heads."""
    say("\n## Lost without them")
    role = {name(row): row["role"] for row in atlas.rows}
    by_role: dict[str, dict[str, Row]] = {}
    for head, one in atlas.needed.items():
        if one["margin"] is not None:
            by_role.setdefault(role[head], {})[head] = one
    for each, own in by_role.items():
        beside = {head: one["without"] - one["without_control"] for head, one in own.items()}
        above = [head for head in own if beside[head] > own[head]["margin"]]
        above.sort(key=beside.__getitem__, reverse=True)
        costs = mean(one["without"] - one["loss"] for one in own.values())
        controls = mean(one["without_control"] - one["loss"] for one in own.values())
        say(f"{each}: {len(own)}, {costs:.4f}, controls {controls:.4f}, above them {len(above)}")
        for head in above[:SHOWN]:
            one = own[head]
            say(
                f"  {head} {one['without'] - one['loss']:.4f}, its control {one['control']} "
                f"{one['without_control'] - one['loss']:.4f}, ± {one['margin']:.4f}"
            )


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    atlas = regard.lens.Atlas.load(parser.parse_args().folder)
    about = atlas.about
    say(f"{about['tokens']:,} tokens of {about['documents']} documents")
    say(f"effects over {about['effects']['documents']} of them")
    rest(atlas.rows)
    roles(atlas.rows, {f"{one.layer}.{one.head}" for one in atlas.heads.discoveries()})
    moved(atlas.rows)
    lost(atlas)


if __name__ == "__main__":
    main()
