"""What the landing page says: three doors, and where a real model is, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["REAL", "Door", "Real", "doors", "real_model"]

REAL = "live/smollm2"
"""The folder of the real model's page on the site."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """A way into the project.

    Args:
        name: its anchor.
        title: of the link to its page, at `address`.
        text: what one finds behind it.
        line: to run in a shell.
        more: titles and addresses of further pages.
        picture: an SVG element.
    """

    name: str
    title: str
    address: str
    text: str
    line: str
    more: tuple[tuple[str, str], ...]
    picture: str


@dataclass(frozen=True)
class Real:
    """The page of a real model: its address, and how much comes with it."""

    address: str
    size: str


def doors(pictures: Mapping[str, str]) -> list[Door]:
    """The three doors.

    Args:
        pictures: as `regard_site.pictures.door_pictures` draws them.
    """
    return [
        Door(
            name="learn",
            title="Learn it",
            address="learn.html#one-hour",
            text="Attention in an hour: an idea, one head by hand, the mask, many heads, a real "
            "model. Or the whole way in eleven, to a GPT whose heads you train and read.",
            line='regard explain "Tom had a red kite and a blue drum. Tom wanted the blue"',
            more=(
                ("Ten minutes", "00-why-look-back.html"),
                ("The whole course", "learn.html#the-whole-course"),
                ("Twenty questions", "questions.html"),
            ),
            picture=pictures["learn"],
        ),
        Door(
            name="look",
            title="Look into your model",
            address="record.html",
            text="Any PyTorch model, unchanged, at any length: where each head looks, what that "
            "moves, and what becomes of the answer without it.",
            line="regard explore --model HuggingFaceTB/SmolLM2-135M",
            more=(("Which models", "models.html"), ("On a page", "explore.html")),
            picture=pictures["look"],
        ),
        Door(
            name="build",
            title="Build with it",
            address="readme.html",
            text="Attention whose weights you can read: no table of them is stored, and any one is "
            "exact. And a small GPT to train on texts of your own.",
            line="regard train --out runs/mine --text book.txt",
            more=(("Train your own", "train.html"), ("Ten lines", "readme.html")),
            picture=pictures["build"],
        ),
    ]


def real_model(site: Path) -> Real | None:
    """The real model's page, if it lies in the site's folder; its size is that of its files."""
    folder = site / REAL
    if not (folder / "index.html").is_file():
        return None
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Real(f"{REAL}/index.html", f"{size / 1e6:.0f} MB")
