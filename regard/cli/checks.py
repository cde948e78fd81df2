"""What is refused of a command's arguments before torch is imported, which takes seconds.

A command calls these first and then imports what computes, so that a misspelt name is answered at
once. What only the model or the machine can tell, such as a head that does not exist, comes later.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.cli.errors import MisuseError, user_errors
from regard.gpt.errors import CheckpointError
from regard.lens.view_names import VIEWS
from regard.models.sources import find, require_dtype
from regard.view.listing import Listing

__all__ = [
    "MODEL_ERRORS",
    "Asked",
    "listing_of",
    "require_between",
    "require_choice",
    "require_device",
    "require_indices",
    "require_model",
    "require_text",
    "require_view",
    "with_options",
]

MODEL_ERRORS = (CheckpointError, OSError, ModuleNotFoundError, ValueError)
"""What `regard.models.open` raises."""

_NAME = re.compile(r"[\w.-]+/[\w.-]+|.+\.gguf|ollama:\S+", re.ASCII)
"""What names a model: on the hub, a file, or one of Ollama."""
_DEVICE = re.compile(r"([a-z_0-9]+)(:\d+)?")
_DEVICES = {"cpu", "cuda", "hpu", "maia", "mps", "mtia", "xpu"}
"""Kinds of devices that torch itself knows; others come with packages."""


def require_text(command: str, text: str | None, model: str | None) -> None:
    """Refuse a lone argument that is a model or a recording: the argument is the text.

    Raises:
        MisuseError: with the command line that was probably meant.
    """
    if text is None or model is not None:
        return
    # By os.path, since a text may be too long for a path, on which that of pathlib fails.
    is_folder = os.path.isdir(text)  # noqa: PTH112
    if is_folder and (Path(text) / "recording.json").is_file():
        shows = command if command in {"explore", "report"} else "explore"
        raise MisuseError(
            f"{text} is a recording, and the argument is the text: regard {shows} --recording "
            f"{shlex.quote(text)}"
        )
    if is_folder or _NAME.fullmatch(text):
        raise MisuseError(
            f"{text} names a model, and the argument is the text: regard {command} --model "
            f"{shlex.quote(text)} TEXT; a text that looks like this goes into a file: --file FILE"
        )


def require_model(
    name: str | None,
    *,
    fetch: bool,
    device: str,
    dtype: str | None = None,
    weights: str | None = None,
) -> None:
    """Refuse a model that is not there, and options that do not fit it; nothing is loaded.

    Args:
        name: the model, as for `regard.models.open`.
        fetch: whether it may be downloaded: then it is looked for once torch is there.
        device: the device to compute on.
        dtype: the dtype of the weights.
        weights: the format of the matrices, as for `regard.gpt.load`.

    Raises:
        MisuseError: with the cure.
    """
    require_device(device)
    if weights not in {None, "int8", "blocks"}:
        raise MisuseError(
            f"--weights is {weights!r}: expected int8 or blocks; leave it out for float32"
        )
    if weights is not None and device.partition(":")[0] != "cpu":
        raise MisuseError(
            f"--weights {weights} is computed on a CPU, and --device is {device}: leave out one"
        )
    if fetch and name is None:
        raise MisuseError("--fetch needs the name of a model: add --model NAME")
    with user_errors(*MODEL_ERRORS, rewrite=with_options):
        require_dtype(dtype)
        if not fetch:
            find(name).require_options(dtype=dtype, weights=weights)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `regard explore` and `regard report` are asked to show: a recording, or a model.

    Args:
        recording: the folder of a recording.
        text: the model's first text.
        model: the model's name; None is that which comes with regard.
        fetch: whether a model of the hub may be downloaded.
        device: the device to compute on.
        dtype: the dtype of the weights.
        weights: the format of a model's matrices, as for `regard.gpt.load`.
        chat: whether a text is a message, which the model's template surrounds.
        system: what the system says there.
        no_bos: whether the tokenizer's own tokens are left out.

    Raises:
        MisuseError: if there is none, or an option does not fit.
    """

    recording: Path | None
    text: str | None
    model: str | None
    fetch: bool
    device: str
    dtype: str | None
    weights: str | None
    chat: bool
    system: str | None
    no_bos: bool

    def __post_init__(self) -> None:
        if self.recording is None:
            require_model(
                self.model,
                fetch=self.fetch,
                device=self.device,
                dtype=self.dtype,
                weights=self.weights,
            )
            return
        require_device(self.device)
        for name in ("text", "model", "dtype", "weights", "fetch", "chat", "system", "no_bos"):
            if getattr(self, name):
                option = "a text" if name == "text" else f"--{name.replace('_', '-')}"
                raise MisuseError(
                    f"a recording has no model, with which {option} goes; leave it out"
                )


def require_device(name: str) -> None:
    """Refuse the name of no device; whether it is there, `regard.cli.device.device_of` sees.

    Raises:
        MisuseError: unless torch, or a package that brings it devices, may know it.
    """
    match = _DEVICE.fullmatch(name)
    if match is not None and match[1] in _DEVICES:
        return
    from importlib.metadata import entry_points

    if match is None or not entry_points(group="torch.backends"):
        raise MisuseError(f"--device is {name!r}: expected cpu, or cuda")


def require_choice(option: str, value: str, choices: Collection[str]) -> None:
    """Refuse a word that is none of an option's choices.

    Raises:
        MisuseError: with the choices.
    """
    if value not in choices:
        raise MisuseError(f"{option} is {value!r}: expected one of {', '.join(choices)}")


def require_indices(options: Mapping[str, int | None]) -> None:
    """Refuse numbers below 0, since what options number is counted from 0.

    Raises:
        MisuseError: for a negative number.
    """
    for option, value in options.items():
        if value is not None and value < 0:
            raise MisuseError(f"there is no {option} {value}: they are counted from 0")


def require_between(option: str, value: int, lowest: int, highest: int) -> None:
    """Refuse a number out of its bounds.

    Raises:
        MisuseError: with the bounds.
    """
    if not lowest <= value <= highest:
        raise MisuseError(
            f"{option} is {value}; expected a whole number >= {lowest} and <= {highest}"
        )


def require_view(name: str) -> None:
    """Refuse the name of no view.

    Raises:
        MisuseError: with the names that there are.
    """
    require_choice("--view", name, VIEWS)


def listing_of(role: str | None, sort: str | None) -> Listing:
    """Return what ``--role`` and ``--sort`` ask for.

    Raises:
        MisuseError: for a role or a column that does not exist.
    """
    with user_errors(ValueError, rewrite="--{}".format):
        return Listing.named(role, sort)


def with_options(message: str) -> str:
    """Replace arguments of `regard.models` in a message by options."""
    message = re.sub(r"\b(fetch|chat)=True", r"--\1", message)
    return re.sub(r"^(dtype|weights|chat|system) (is|goes)", r"--\1 \2", message)
