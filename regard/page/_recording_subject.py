"""A recording that the explorer shows.

Axes: H heads, T tokens.
"""

from __future__ import annotations

from typing import Any

from regard.page._errors import PageError
from regard.page._run import Run
from regard.page.subjects import shape_text
from regard.record import Recording


class RecordingSubject:
    """A recording: the self-attention of its sequences.

    Args:
        recording: what was recorded.
        title: what it is called.

    Raises:
        PageError: if it holds nothing that a page could show.

    Example:
        >>> import torch, regard
        >>> from regard.page import RecordingSubject
        >>> with regard.record() as recording:
        ...     _ = regard.attention(*torch.randn(3, 1, 2, 7, 4), mask=regard.causal())
        >>> RecordingSubject(recording, title="a recording").about()["shape"]
        '1 layer × 2 heads'
    """

    def __init__(self, recording: Recording, *, title: str) -> None:
        layers = recording.of_kind().layers
        if not layers:
            raise PageError("the recording holds no attention")
        first = layers[0].pattern
        for layer in layers:
            shape = layer.pattern.shape
            if len(shape) not in (3, 4) or shape[-1] != shape[-2] or shape[-1] != first.shape[-1]:
                raise PageError(
                    f"the page shows whole sequences, (heads, length, length), but "
                    f"{layer.name or 'a layer'} is {layer.pattern!r}; record all rows, from the "
                    "prompt on"
                )
        names = recording.tokens
        count = first.shape[0] if first.ndim == 4 else 1
        self._title = title
        self._shape = shape_text(len(layers), len(layers[0].heads))
        self._runs = {
            str(sequence): Run(
                id=str(sequence),
                title=title if count == 1 else f"{title}, sequence {sequence}",
                tokens=_names(names, sequence, first.shape[-1]),
                layers=layers,
                sequence=sequence,
            )
            for sequence in range(count)
        }

    def about(self) -> dict[str, Any]:
        """What it is, and what can be done with it."""
        return {
            "title": self._title,
            "shape": self._shape,
            "writes": False,
            "generates": False,
            "example": None,
            "limits": {"characters": 0, "tokens": 0, "generate": 0},
            "runs": list(self._runs),
        }

    def run(self, name: str) -> Run:
        """One sequence of it.

        Raises:
            KeyError: for another sequence.
        """
        return self._runs[name]


def _names(
    names: tuple[tuple[str, ...], ...] | None, sequence: int, length: int
) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(length)))
    own = names[sequence if sequence < len(names) else 0]
    if len(own) != length:
        raise PageError(f"the recording has names for {len(own)} positions, but {length} positions")
    return own
