"""Runs of one model over one text: as it is, and batches of copies, each changed in its own way.

Axes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from regard._shapes import Float
from regard.intervene._changer import ModelChanger
from regard.intervene._effect_prefix import Prefix
from regard.intervene._effect_targets import Target, numbers, target_of
from regard.intervene._intervention import Intervention
from regard.record import Recording, record
from regard.record.intercept import change_calls, replace_attention, uncompiled
from regard.record.layer import Layer

_TOKENS = 8192  # of a batch: more of them are not faster
_BYTES = 2**29  # of a batch's logits


@dataclass(frozen=True, eq=False, kw_only=True)
class Unchanged:
    """What is known of a model after a run as it is."""

    target: Tensor
    """The number, ``()``; with gradients where they are enabled."""
    recording: Recording
    batch_size: int
    """How many copies of the text make a batch."""

    @property
    def number(self) -> float:
        """The target's."""
        return float(self.target.detach())

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers of self-attention, or of what there is, each once however often it ran."""
        return tuple({layer.index: layer for layer in self.recording.of_kind()}.values())

    @property
    def keys(self) -> int:
        """The length of the text.

        Raises:
            ValueError: if it differs from layer to layer.
        """
        sizes = sorted({layer.pattern.shape[-1] for layer in self.layers})
        if len(sizes) != 1:
            raise ValueError(
                f"over='keys' needs layers over the same keys, but they have {sizes}; take "
                "over='heads'"
            )
        return sizes[0]

    @property
    def tokens(self) -> tuple[str, ...] | None:
        """The names of the keys, if they are known."""
        return None if self.recording.tokens is None else self.recording.tokens[0]


class ModelRuns:
    """Runs a model over a text, and reads a number of each run.

    Args:
        model: the model.
        run: what it is run on, as `effects` has it.
        target: the number, likewise.
        tokens: names of the tokens, as for `record`.

    Raises:
        TypeError: for arguments of another kind.
        ValueError: for more than one sequence.
    """

    def __init__(self, model: nn.Module, run: Any, target: Target, tokens: Any = None) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, but is {type(model).__name__}")
        model = uncompiled(model)
        self.model = model
        self._call, inputs = _call_of(run)
        self.batches = inputs is not None
        """Whether copies of the text make a batch."""
        self.target, self._number = target_of(target, inputs)
        self._tokens = tokens
        self._changer = ModelChanger(model)
        self._prefix = Prefix(model)
        self._places: dict[tuple[str, int], int] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let the runs inside be changed."""
        with ExitStack() as stack:
            stack.enter_context(replace_attention(self.model))
            stack.enter_context(change_calls(self._changer))
            stack.callback(self._prefix.forget)
            yield

    def unchanged(self, *, keep: bool = True) -> Unchanged:
        """Run the model as it is.

        Args:
            keep: keep what changed runs need not compute again.
        """
        self._changer.changes.clear()
        with (
            self._prefix.observe() if keep and self.batches else nullcontext(),
            record(self.model, tokens=self._tokens, rows=-1) as recording,
        ):
            output = self._call(self.model, 1)
        self._places = {
            (layer.kind, layer.index): place for place, layer in enumerate(recording.layers)
        }
        number = numbers(self._number(output), 1)[0]
        if number.isnan():
            raise ValueError(
                f"the {self.target} is NaN, so there is nothing to measure; check the model's "
                "weights and the target"
            )
        logits = getattr(output, "logits", output)
        size = logits.numel() * logits.itemsize if isinstance(logits, Tensor) else 0
        length = max(layer.pattern.shape[-1] for layer in recording.layers)
        batch = min(_TOKENS // max(length, 1), _BYTES // max(size, 1)) if self.batches else 1
        return Unchanged(target=number, recording=recording, batch_size=max(batch, 1))

    def changed(
        self, copies: int, first: Layer, state: Callable[[Intervention], None]
    ) -> Float[Tensor, " B"]:
        """Run copies of the text under changes.

        Args:
            copies: how many.
            first: the first layer that is changed.
            state: states the changes.

        Returns:
            The target of each copy.
        """
        self._changer.changes.clear()
        state(Intervention(self._changer))
        place = self._places[first.kind, first.index]
        with self._prefix.skip(place, copies):
            output = self._call(self.model, copies)
        self._changer.require_all_met()
        return numbers(self._number(output), copies).detach().cpu()


def _call_of(run: Any) -> tuple[Callable[[nn.Module, int], Any], Mapping[str, Any] | None]:
    """What calls a model on so many copies of a text; and its inputs by name, if they are known."""
    if isinstance(run, Tensor):
        ids = run[None] if run.ndim == 1 else run
        if ids.ndim != 2 or len(ids) != 1 or ids.is_floating_point():
            raise ValueError(
                f"run must be token ids (T,) or (1, T), but is {run.dtype} of shape "
                f"{tuple(run.shape)}; of a batch, give one sequence at a time"
            )
        return lambda model, copies: model(ids.repeat(copies, 1)), {"input_ids": ids}
    if isinstance(run, Mapping):
        inputs = dict(run)
        if inputs.get("past_key_values") is not None:
            raise ValueError(
                "run holds past_key_values, which every run would make longer; give the whole text"
            )
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.ndim > 1 and len(value) != 1:
                raise ValueError(
                    f"run: {name} has shape {tuple(value.shape)}, but must be of one sequence, "
                    "(1, …); give one sequence at a time"
                )
        return lambda model, copies: model(**_copies(inputs, copies)), inputs
    if callable(run):
        call = cast("Callable[[nn.Module], Any]", run)
        return lambda model, copies: call(model), None  # noqa: ARG005 - it makes one run
    raise TypeError(
        "run must be token ids, a mapping of the model's inputs by name, or a function that runs "
        f"the model it is given, but is {type(run).__name__}; of a list of ids, torch.tensor(ids)"
    )


def _copies(inputs: Mapping[str, Any], copies: int) -> dict[str, Any]:
    def each(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim or len(value) != 1:
            return value  # such as positions (T,), the same for all
        return value.repeat(copies, *(1,) * (value.ndim - 1))

    return {name: each(value) for name, value in inputs.items()}


def chunks(count: int, size: int) -> Iterator[range]:
    """Split numbers into runs of at most a size."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
