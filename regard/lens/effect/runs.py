"""Runs of one model over one text: unchanged, and batches of copies with an intervention each.

Axes: B batch, T tokens.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import BaseTorchFunctionMode

from regard._modules import module_of, unwrapped
from regard._shapes import Float
from regard.intercept import Call, change_calls, last_logits, replace_attention
from regard.intervene import Intervention
from regard.intervene.changer import ModelChanger
from regard.lens.effect.blocks import CachedBlocks, tensors_in
from regard.lens.effect.caveats import Draws
from regard.lens.targets import Target, last_logits_for, last_positions, numbers, target_of
from regard.record import Recording, record
from regard.record.layer import Layer

_TOKENS = 8192  # maximum of a batch; more are not faster
_BYTES = 2**29  # maximum size of a batch's logits


@dataclass(frozen=True, eq=False, kw_only=True)
class Unchanged:
    """Results of an unchanged run."""

    target: Tensor
    """The number, ``()``; with gradients where they are enabled."""
    recording: Recording
    batch_size: int
    """Number of copies of the text in a batch."""

    @property
    def number(self) -> float:
        """The target's."""
        return float(self.target.detach())

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the layers of self-attention, or of the only kind, each once."""
        return tuple({layer.index: layer for layer in self.recording.of_kind().layers}.values())

    @property
    def tokens(self) -> tuple[str, ...] | None:
        """Return the names of the keys, if they are known."""
        return None if self.recording.tokens is None else self.recording.tokens[0]


@dataclass(frozen=True)
class _Result:
    """The result of a run, for comparison to the last bit."""

    number: float
    tensors: tuple[tuple[torch.Size, torch.dtype, int], ...]
    """Shape, dtype and checksum of each output tensor."""

    @classmethod
    def of(cls, output: Any, number: Tensor) -> _Result:
        """Build from the output of a run."""
        tensors = [tensor for tensor in tensors_in(output) if type(tensor) is Tensor]
        return cls(float(number), tuple((t.shape, t.dtype, _bits(t)) for t in tensors))


def _bits(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided:
        return 0
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    octets = real.detach().reshape(-1).view(torch.uint8)
    if octets.storage_offset() % 8:
        octets = octets.clone()
    whole = len(octets) // 8 * 8
    words = octets[:whole].view(torch.int64)  # the sum is several times slower with other sizes
    return int(words.sum()) + int(octets[whole:].sum())


class _NotCopiesError(Exception):
    """A call to be changed whose batch does not consist of the copies of the text."""


class _BatchCheck:
    """Refuses to change a batch entry that may not be a copy of the text.

    A model may fold windows or channels into the batch, in any order. Entry i is copy i if the
    batch size of each call is the number of copies, for one text and for several.

    Args:
        changer: applies the interventions to the calls.
    """

    def __init__(self, changer: ModelChanger) -> None:
        self._changer = changer
        self._alone: dict[int, set[int | None]] = defaultdict(set)  # batch sizes by module
        self._copies: int | None = None

    def begin(self) -> None:
        """Record the batch sizes of the next run, which is on one text."""
        self._alone.clear()

    @contextmanager
    def of(self, copies: int) -> Iterator[None]:
        """Check the changed calls of a run on several copies."""
        self._copies = copies
        try:
            yield
        finally:
            self._copies = None

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a Changer
        """Return False: torch's fused operators stay as they are."""
        return False

    def change(self, call: Call) -> None:
        """Check a call before it is changed.

        Raises:
            _NotCopiesError: if it is to be changed, and its batch may not consist of the copies.
        """
        size = call.query.shape[0] if call.query.ndim == 4 else None
        caller = id(call.modules[-1]) if call.modules else 0
        if self._copies is None:
            self._alone[caller].add(size)
            return
        if call.repeated or not self._changer.may_change(call.modules, call.run):
            return
        if size != self._copies or self._alone[caller] != {1}:
            raise _NotCopiesError


class ModelRuns:
    """Runs a model over a text, and reads the target of each run.

    Args:
        model: the model.
        run: as for `effects`.
        target: as for `effects`.
        tokens: names of the tokens, as for `record`.

    Raises:
        TypeError: for arguments of the wrong type.
        ValueError: for more than one sequence.
    """

    def __init__(self, model: nn.Module, run: Any, target: Target, tokens: Any = None) -> None:
        model = module_of(model)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, but is {type(model).__name__}")
        model = unwrapped(model)
        self.model = model
        self._call, inputs = call_of(run)
        self._ids = inputs["input_ids"] if inputs is not None and isinstance(run, Tensor) else None
        self._last = None if self._ids is None else last_positions(target, self._ids.shape[-1])
        self._has_inputs = self._may_skip = inputs is not None
        self.batches = self._has_inputs
        """True if copies of the text can form a batch."""
        self.target, self._number = target_of(target, model, inputs, tokens)
        self._options = {} if inputs is None else last_logits_for(target, model, inputs)
        self._tokens = tokens
        self._changer = ModelChanger(model)
        self._batch = _BatchCheck(self._changer)
        self._blocks = CachedBlocks(model)
        self._places: dict[tuple[str, int], int] = {}
        self._result: _Result | None = None
        self._has_changed = self._has_batched = False
        self._is_same: dict[int, bool] = {}

    @property
    def length(self) -> int | None:
        """Return the number of tokens of a text given as ids; None otherwise."""
        return None if self._ids is None else self._ids.shape[-1]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Allow changed runs inside the block."""
        with ExitStack() as stack:
            stack.enter_context(replace_attention(self.model))
            stack.enter_context(change_calls(self._batch))
            stack.enter_context(change_calls(self._changer))
            stack.callback(self._blocks.forget)
            yield

    def unchanged(self, *, keep: bool = True, start: int = 0) -> Unchanged:
        """Run the model unchanged.

        Args:
            keep: cache outputs of blocks that changed runs can skip.
            start: the first query that an intervention affects. A model of transformers with a
                KV cache reads the tokens before it once, if the target does not need their logits;
                all further runs are over the remaining tokens.

        Warns:
            RuntimeWarning: if the model draws random numbers.
        """
        self._changer.changes.clear()
        self._batch.begin()
        self._has_changed = self._has_batched = False
        self._is_same.clear()
        draws, cache = Draws(self.model), self._cache_before(start)
        observes = keep and self._has_inputs and cache is None
        with (
            record(self.model, tokens=self._tokens, rows=-1) as recording,
            self._blocks.observe() if observes else nullcontext(),
        ):
            if cache is not None:
                self._read_once(start, cache)
            output = self._run(1)
            number = numbers(self._number(output), 1)[0]
        self._result = _Result.of(output, number) if keep else None
        self._places = {
            (layer.kind, layer.index): place for place, layer in enumerate(recording.layers)
        }
        self.require_number(number)
        draws.warn(self.again)
        self.batches = self._has_inputs and not _mixes_batch(self.model)
        logits = getattr(output, "logits", output)
        size = logits.numel() * logits.itemsize if isinstance(logits, Tensor) else 0
        length = max(layer.pattern.shape[-1] for layer in recording.layers)
        batch = min(_TOKENS // max(length, 1), _BYTES // max(size, 1)) if self.batches else 1
        return Unchanged(target=number, recording=recording, batch_size=max(batch, 1))

    def again(self) -> tuple[Any, Tensor]:
        """Run the model unchanged again; return its output and the target, ``()``."""
        self._changer.changes.clear()
        output = self._run(1)
        return output, numbers(self._number(output), 1)[0]

    def require_number(self, computed: Tensor) -> None:
        """Raise ValueError for NaN."""
        if computed.isnan().any():
            raise ValueError(
                f"the {self.target} is NaN, so there is nothing to measure; check the model's "
                "weights and the target"
            )

    def _cache_before(self, start: int) -> Any:
        """Return an empty cache for the tokens before `start`; None if they can't be read first."""
        if self._ids is None or start == 0 or self._last is None:
            return None
        return _full_cache(self.model) if self._last <= self._ids.shape[-1] - start else None

    def _read_once(self, start: int, cache: Any) -> None:
        """Read the tokens before `start` into a cache; further runs are over the rest."""
        assert self._ids is not None, "a cache is only made for ids"
        ids, keep = self._ids, last_logits(1) if self._options else {}
        read = self.model(ids[:, :start], past_key_values=cache, use_cache=True, **keep)
        self.require_number(read.logits)  # keys of NaN would not equal those in the cache

        def call(model: nn.Module, copies: int, **options: Any) -> Any:
            own = deepcopy(cache)
            if copies > 1:
                own.batch_repeat_interleave(copies)
            rest = ids[:, start:].repeat(copies, 1)
            return model(rest, past_key_values=own, use_cache=True, **options)

        self._call, self._may_skip = call, False

    def changed(self, first: Layer, changes: Sequence[Callable[..., None]]) -> Float[Tensor, " B"]:
        """Run the text under each of several changes.

        Args:
            first: the first layer that any of them changes.
            changes: functions that state a change, given an `Intervention` and the ``batch`` entry.

        Returns:
            The target under each change.
        """
        if self.batches and len(changes) > 1:
            try:
                return self._together(first, changes)
            except Exception as error:
                # Some models take only one sequence. Other errors are raised again by single runs.
                if self._has_batched and not isinstance(error, _NotCopiesError):
                    raise
                self.batches = False
        return torch.cat([self._together(first, [change]) for change in changes])

    def _together(
        self, first: Layer, changes: Sequence[Callable[..., None]]
    ) -> Float[Tensor, " B"]:
        """Run a batch with a copy of the text per change."""
        copies, place = len(changes), self._places[first.kind, first.index]
        skips = self._skips(place, copies)
        self._changer.changes.clear()
        intervention = Intervention(self._changer)
        for copy, change in enumerate(changes):
            change(intervention, batch=copy if copies > 1 else None)
        with (
            self._batch.of(copies) if copies > 1 else nullcontext(),
            self._blocks.skip(place, copies) if skips else self._blocks.learn(copies),
        ):
            output = self._run(copies)
        self._changer.require_all_used()
        result = numbers(self._number(output), copies).detach().cpu()
        self._has_changed, self._has_batched = True, self._has_batched or copies > 1
        return result

    def _run(self, copies: int) -> Any:
        """Run the model on a number of copies of the text."""
        return self._call(self.model, copies, **self._options)

    def _skips(self, place: int, copies: int) -> bool:
        """Return True if a run may skip the blocks before an attention call.

        The first changed run skips nothing. It shows which outputs are batched, and leaves its own
        values in any state that blocks mutate, so that a model that reads such state gives another
        result than the unchanged run when blocks are skipped.
        """
        if place == 0 or not self._may_skip or not self._has_changed:
            return False
        if copies > 1 and not self._blocks.knows_batch:
            return False
        if not self._blocks.can_skip(place, copies):
            return False
        if place not in self._is_same:
            self._is_same[place] = self._is_same_without(place)
        return self._is_same[place]

    def _is_same_without(self, place: int) -> bool:
        """Return True if an unchanged run that skips blocks gives the same result."""
        self._changer.changes.clear()
        try:
            # The unchanged run had a mode too: under a mode torch uses no fused operators.
            with BaseTorchFunctionMode(), self._blocks.skip(place, 1):
                output = self._run(1)
                number = numbers(self._number(output), 1)[0]
        except Exception:  # noqa: BLE001 - without the skipped blocks it may fail in any way
            return False
        return _Result.of(output, number) == self._result


def _mixes_batch(model: nn.Module) -> bool:
    """Return True if batch entries depend on each other, by batch norm or dynamic quantization."""
    return any(
        (isinstance(module, _BatchNorm) and (module.training or module.running_mean is None))
        or ".quantized.dynamic." in type(module).__module__
        for module in model.modules()
    )


def _full_cache(model: nn.Module) -> Any:
    """Return an empty cache that keeps all keys, also in layers with a sliding window.

    None for a model that is not of transformers, and for one with layers of another kind, which
    need another cache.
    """
    if "transformers" not in sys.modules:
        return None
    from transformers import DynamicCache, PreTrainedModel
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if not isinstance(model, PreTrainedModel):
        return None
    planned = DynamicCache(config=model.config).layers
    if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in planned):
        return None
    return DynamicCache()


def call_of(run: Any) -> tuple[Callable[..., Any], Mapping[str, Any] | None]:
    """Return a function that calls a model on copies of a text, with options, and its named inputs.

    The inputs that a caller's function passes are unknown: None, and options are ignored.
    """
    if isinstance(run, Tensor):
        ids = run[None] if run.ndim == 1 else run
        if ids.ndim != 2 or len(ids) != 1 or ids.is_floating_point():
            raise ValueError(
                f"run must be token ids (T,) or (1, T), but is {run.dtype} of shape "
                f"{tuple(run.shape)}; of a batch, give one sequence at a time"
            )
        return lambda model, copies, **options: model(ids.repeat(copies, 1), **options), {
            "input_ids": ids
        }
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
        return lambda model, copies, **options: model(**_copies(inputs, copies), **options), inputs
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
    """Split ``range(count)`` into ranges of at most the size."""
    for start in range(0, count, size):
        yield range(start, min(start + size, count))
