"""Live reports: a model that runs in the page, in one file or in a folder."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import Error
from regard.gpt.blocks import KINDS, blocks_of
from regard.models.own_gpt import own_gpt
from regard.page._errors import PageError
from regard.page._run import views_with
from regard.page.example import known_part
from regard.page.file.live import live_page, objection_to_tokenizer, tokenizer_file
from regard.page.file.live_folder import PASSAGE, as_int8, live_files, longest, perplexity
from regard.page.subjects import ModelSubject

if TYPE_CHECKING:
    from regard.gpt import GPT
    from regard.models import LanguageModel
    from regard.page.subjects import Subject

__all__ = ["FOLDER_SIZE", "LIVE_SIZE", "live_html", "needs_folder", "write_folder"]

LIVE_SIZE = 12_000_000
"""Largest live report in one file, in bytes."""
FOLDER_SIZE = 200_000_000
"""Most bytes of a model in a folder, which a browser can fetch and keep; int8 has one a number."""
_UNREAD = "output_norms", "score_scale", "score_softcap", "logit_softcap", "window_rotary_base"
"""Options of a model, as Gemma 2 and 3 have them, that the page's modules do not read."""
_WORSE = 1.01  # most that int8 may raise the perplexity


def needs_folder(subject: Subject) -> bool:
    """Return whether a subject's model is too large for a live report in one file, or in blocks.

    Args:
        subject: what the page shows; a recording has no model, and fits.

    Example:
        >>> from regard.gpt import load
        >>> from regard.page import ModelSubject, needs_folder
        >>> needs_folder(ModelSubject(*load(), title="the model", text="The cat"))
        False
    """
    if not isinstance(subject, ModelSubject):
        return False
    return bool(blocks_of(subject.model.module)) or _least(subject.model) > LIVE_SIZE


def live_html(subject: Subject, *, start: str = "") -> str:
    """Make a live report's HTML; see `regard.page.report`."""
    opened, gpt, tokenizer = _prepared(subject, None)
    _require_small(_least(opened.model))  # so that a far too large model is not packed
    first = opened.run(opened.about()["runs"][0])
    page = live_page(gpt, tokenizer, _about(opened, start), opened.ids_of(first), first.notes)
    _require_small(len(page.encode()))
    return page


def write_folder(subject: Subject, folder: Path, *, start: str = "") -> int:
    """Write a live report into a folder, and return its bytes; see `regard.page.report`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder")
    opened, gpt, tokenizer = _prepared(subject, None, "blocks")
    size = sum(
        tensor.numel() if tensor.is_floating_point() else tensor.nbytes
        for tensor in gpt.state_dict().values()
    )
    if size > FOLDER_SIZE:
        raise PageError(
            f"the model takes {size / 1e6:,.0f} MB in a page, and at most "
            f"{FOLDER_SIZE / 1e6:.0f} MB run there: use regard explore"
        )
    quantised = gpt if gpt.weights == "blocks" else as_int8(gpt)
    about = _about(opened, start) | {"numbers": _cost(opened.model, gpt, quantised)}
    run = opened.run(opened.about()["runs"][0])
    ids, notes = opened.ids_of(run), list(run.notes)
    most = longest(quantised)
    if most < gpt.config.context:
        about["shape"] += f", {most} in this page"
    if len(ids) > most:
        notes = [f"the page has room for {most} tokens; these are the first of the text"]
        ids = ids[:most]
    # As the page will show it: the next tokens are those of its matrices.
    shown = ModelSubject(quantised, opened.model.tokenizer, title=run.title, ids=ids)
    shown_run = shown.run(shown.about()["runs"][0])
    first = {"ids": ids, "notes": notes}
    first["run"] = shown_run.describe() | {"id": "1", "notes": notes}
    folder.parent.mkdir(parents=True, exist_ok=True)
    total = 0
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        made = Path(name, "made")
        made.mkdir()
        for file, data in live_files(quantised, tokenizer, about, first):
            (made / file).write_bytes(data)
            total += len(data)
        if folder.exists():
            folder.rmdir()
        made.rename(folder)  # whole, or not at all
    return total


def _prepared(subject: Subject, *weights: str | None) -> tuple[ModelSubject, GPT, dict[str, Any]]:
    """Return the subject, its model as a GPT with such weights, and its tokenizer's file."""
    if not isinstance(subject, ModelSubject):
        raise PageError("a recording has no model that could run in the page; leave live out")
    if subject.is_message:
        raise PageError("a live report reads plain text, and this one is a message: leave chat out")
    try:
        gpt = own_gpt(subject.model)
    except Error as error:
        raise PageError(f"{error}: leave live out, or use regard explore") from error
    if gpt.weights not in weights:
        raise PageError(
            f"the model has weights in {gpt.weights}, and a page is made of one in floating point, "
            f'a folder also of one in blocks: load it without weights="{gpt.weights}", or leave '
            "live out"
        )
    for name in _UNREAD:
        if getattr(gpt.config, name):
            raise PageError(
                f"a page does not compute {name}, which this model has: leave live out, or use "
                "regard explore"
            )
    try:
        file = tokenizer_file(subject.model.tokenizer, special=subject.adds_special)
        why = objection_to_tokenizer(file)
    except ValueError as error:
        why = str(error)
    if why is not None:
        raise PageError(
            f"a page can't encode as this tokenizer does: {why}; leave live out, or use "
            "regard explore"
        )
    return subject, gpt, file


def _about(subject: ModelSubject, start: str) -> dict[str, Any]:
    about = subject.about() | {"report": True, "live": True, "runs": ["1"], "start": start}
    about["views"] = views_with(lambda _: None)  # of a changed text the page itself objects to one
    about.pop("training", None)  # which only a server has
    return about


def _cost(model: LanguageModel, gpt: GPT, quantised: GPT) -> str:
    """Say how the matrices are kept and what rounding them costs, in a sentence.

    Raises:
        PageError: it costs more than a hundredth of the perplexity.
    """
    ids = model.read(known_part(model, PASSAGE)).ids[: gpt.config.context]
    before = perplexity(gpt, ids)
    if quantised is gpt:
        kinds = {KINDS[kind].name for blocks in blocks_of(gpt).values() for kind, _ in blocks.parts}
        return (
            f"Its matrices are those of its file, in {', '.join(sorted(kinds))}: {len(ids)} tokens "
            f"of English have perplexity {before:.2f}."
        )
    after = perplexity(quantised, ids)
    share = f"{100 * (after / before - 1):+.1f} %"
    if not after <= _WORSE * before:
        raise PageError(
            f"with int8 matrices the model's perplexity on {len(ids)} tokens of English is "
            f"{after:.2f} in place of {before:.2f} ({share}), and a page may cost 1 %: use "
            "regard explore"
        )
    assert math.isfinite(after)
    return (
        f"Its matrices are rounded to int8: {len(ids)} tokens of English have perplexity "
        f"{after:.2f}, in float32 {before:.2f} ({share})."
    )


def _least(model: LanguageModel) -> int:
    """A lower bound of a file's bytes: weights in half precision."""
    return 2 * sum(parameter.numel() for parameter in model.module.parameters())


def _require_small(size: int) -> None:
    if size > LIVE_SIZE:
        raise PageError(
            f"a live report of this model takes {size / 1e6:.0f} MB or more, and at most "
            f"{LIVE_SIZE / 1e6:.0f} MB go into one file: name a folder, without a suffix. Weights "
            "that float16 holds exactly take half the room of others"
        )
