"""How scenes are written down: a passage a line, beats apart by an empty line.

A line that is indented goes on with the line before it, ` / ` begins a new line of the story, and a
hyphen alone is a passage that says nothing.
"""

from __future__ import annotations

Scene = tuple[tuple[str, ...], ...]


def scene(text: str) -> Scene:
    """The beats of a scene, each a choice among passages."""
    return tuple(passages(beat) for beat in text.strip().split("\n\n"))


def passages(text: str) -> tuple[str, ...]:
    """Passages to choose from."""
    lines = text.strip().replace("\n    ", " ").split("\n")
    return tuple(
        "" if line == "-" else f"{line} ".replace(" / ", "\n").rstrip(" ") for line in lines
    )
