"""What a request asks for: flat arguments, such as the server takes from any client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from regard.pattern.readout import Readout
from regard.readouts import Entropy, Received, Spans, TopK

Read = Literal["received", "entropy", "topk", "spans", "recording"]
READS: tuple[Read, ...] = ("received", "entropy", "topk", "spans", "recording")

_PREFIX = "regard_"
_MOST_KEYS = 256


@dataclass(frozen=True, kw_only=True)
class AttentionRequest:
    """What is read of a request's attention.

    Attributes:
        read: names, of `READS`.
        layers: numbers of the attention layers; None is all.
        heads: numbers of the query heads, the same of each layer; None is all.
        k: how many keys ``topk`` gives.
        spans: for ``spans`` the number of each prompt token's span, from 0; negative for none.
    """

    read: tuple[Read, ...]
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    k: int = 8
    spans: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.read if name not in READS]
        if unknown or not self.read or len(set(self.read)) < len(self.read):
            raise ValueError(
                f"read must name some of {', '.join(READS)}, each once, but is {list(self.read)}"
            )
        for name in ("layers", "heads"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if not numbers or min(numbers) < 0 or len(set(numbers)) < len(numbers):
                raise ValueError(
                    f"{name} must be different numbers from 0, but is {list(numbers)}; leave it "
                    "out for all"
                )
        if not 1 <= self.k <= _MOST_KEYS:
            raise ValueError(f"k must be between 1 and {_MOST_KEYS}, but is {self.k}")
        if ("spans" in self.read) != (self.spans is not None):
            raise ValueError(
                "the spans are the labels of the readout spans: name it in read and give spans= a "
                "label for each prompt token, or do neither"
            )

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None) -> AttentionRequest | None:
        """Take it out of a request's extra arguments; None where it asks for nothing.

        Raises:
            ValueError: for arguments that name nothing that could be read.
            TypeError: for arguments of another kind.
        """
        own = {
            name.removeprefix(_PREFIX): value
            for name, value in (arguments or {}).items()
            if name.startswith(_PREFIX)
        }
        if not own:
            return None
        unknown = sorted(own.keys() - cls.__dataclass_fields__.keys())
        if unknown or "read" not in own:
            raise ValueError(
                f"the arguments {sorted(_PREFIX + name for name in own)} need {_PREFIX}read, and "
                f"may have {', '.join(_PREFIX + name for name in cls.__dataclass_fields__)}"
            )
        read = own.pop("read")
        k = own.pop("k", cls.k)
        if not isinstance(k, int) or isinstance(k, bool):
            raise TypeError(f"{_PREFIX}k must be a whole number, but is {k!r}")
        lists = {name: _numbers(name, value) for name, value in own.items()}
        return cls(read=_names(read), k=k, **lists)

    def arguments(self) -> dict[str, Any]:
        """Make the extra arguments of a request."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            _PREFIX + name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }

    @property
    def records(self) -> bool:
        """Whether queries and keys are kept, for a recording."""
        return "recording" in self.read

    def answer_bytes(self, rows: int, keys: int) -> int:
        """How many bytes the readouts of a head take."""
        sizes = {
            "received": 4 * keys,
            "entropy": 4 * rows,
            "topk": 12 * rows * min(self.k, keys),  # a weight and a position
            "spans": 4 * rows * (max(self.spans or (-1,)) + 1),
        }
        return sum(sizes.get(name, 0) for name in self.read)

    def readouts(self) -> list[Readout[Any, Any]]:
        """Make the readouts, in the order of the request."""
        readouts: dict[Read, Readout[Any, Any]] = {
            "received": Received(),
            "entropy": Entropy(),
            "topk": TopK(self.k),
            "spans": Spans(self.spans or ()),
        }
        return [readouts[name] for name in self.read if name in readouts]


def ask(
    read: Sequence[Read],
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    k: int = 8,
    spans: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Make the arguments by which a request asks for readouts.

    They are ``SamplingParams(extra_args=…)`` offline, and ``vllm_xargs`` in the body of a request
    to the server.

    Args:
        read: ``"received"``, what each key receives of the queries, summed; ``"entropy"`` of each
            row, in nats; ``"topk"``, the strongest keys of each row; ``"spans"``, the share of each
            row on spans of the prompt; ``"recording"``, a folder for `regard explore --recording`.
        layers: numbers of the attention layers, from 0; None is all.
        heads: numbers of the query heads, the same of each layer; None is all.
        k: how many keys of each row ``"topk"`` gives.
        spans: for ``"spans"``, of each prompt token the number of its span; negative for none.

    Raises:
        ValueError: for names and numbers that nothing can be read by.
        TypeError: for a name in the place of a list.

    Example:
        >>> ask(["entropy", "topk"], layers=[0, 2], k=4)
        {'regard_read': ['entropy', 'topk'], 'regard_layers': [0, 2], 'regard_k': 4}
    """
    request = AttentionRequest(
        read=_names(read),
        layers=None if layers is None else _numbers("layers", layers),
        heads=None if heads is None else _numbers("heads", heads),
        k=k,
        spans=None if spans is None else _numbers("spans", spans),
    )
    return request.arguments()


def _names(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{_PREFIX}read must be a list of names, but is {value!r}")
    return tuple(value)


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    whole = isinstance(value, Sequence) and all(
        isinstance(number, int) and not isinstance(number, bool) for number in value
    )
    if not whole:
        raise TypeError(f"{_PREFIX}{name} must be a list of whole numbers, but is {value!r}")
    return tuple(value)
