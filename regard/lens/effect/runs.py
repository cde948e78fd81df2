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
from regard.lens.effect.blocks import CachedBlocks, NotCopiesError, tensors_in
from regard.lens.effect.caveats import Draws
from regard.lens.targets import Target, last_logits_for, last_positions, numbers, target_of
from regard.record import Recording, record
from regard.record.layer import Layer

_TOKENS = 2048  # maximum of a batch; with more, activations are no longer in the cache
_FEW = 4  # changes that are made in whole runs
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
        """Check the changed calls of a run, or of a part of it, on so many copies."""
        before, self._copies = self._copies, copies
        try:
            yield
        finally:
            self._copies = before

    def may_change(self, modules: Sequence[nn.Module], run: int) -> bool:  # noqa: ARG002 - of a Changer
        """Return False: torch's fused operators stay as they are."""
        return False

    def change(self, call: Call) -> None:
        """Check a call before it is changed.

        Raises:
            NotCopiesError: if it is to be changed, and its batch may not consist of the copies.
        """
        size = call.query.shape[0] if call.query.ndim == 4 else None
        caller = id(call.modules[-1]) if call.modules else 0
        if self._copies is None:
            self._alone[caller].add(size)
            return
        if call.repeated or not self._changer.may_change(call.modules, call.run):
            return
        if size != self._copies or self._alone[caller] != {1}:
            raise NotCopiesError


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
        self._has_batched = self._skips = False
        self._splits = True

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
        self._has_batched = False
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

    def each(
        self, firsts: Sequence[Layer], changes: Sequence[Callable[..., None]], size: int
    ) -> Iterator[tuple[list[int], Float[Tensor, " B"]]]:
        """Run the text under each of several changes, several at a time.

        Blocks before a change are skipped if unchanged runs without them give the same; see
        `_may_skip_before`.

        Args:
            firsts: the first layer that each change is of.
            changes: functions that state a change, given an `Intervention` and the ``batch`` entry.
            size: maximum number of copies of the text in a batch.

        Yields:
            The numbers of the changes of a batch, and the target under each of them.
        """
        starts = [self._places[layer.kind, layer.index] for layer in firsts]
        left = sorted(range(len(changes)), key=starts.__getitem__)
        begins = sorted(set(starts))

        def run(count: int) -> tuple[list[int], Tensor]:
            some = left[:count]
            del left[:count]
            return some, self._changed([starts[n] for n in some], [changes[n] for n in some])

        self._skips = False
        # To find whether blocks can be skipped takes about a run, of which a change saves a part.
        if self._may_skip and len(left) > _FEW and self._blocks.can_skip(begins[-1]):
            # Two copies are enough to show which tensors have an entry per copy.
            yield run(min(size, 2) if self.batches else 1)
            self._skips = self._may_skip_before(begins)
        while left:
            yield run(min(size, len(left)) if self.batches else 1)

    def _changed(
        self, starts: Sequence[int], changes: Sequence[Callable[..., None]]
    ) -> Float[Tensor, " B"]:
        """Run the text under changes, each from so many attention calls on, ascending."""
        while self.batches and len(changes) > 1:
            try:
                return self._together(starts, changes)
            except Exception as error:
                if self._skips and self._splits and starts[0] < starts[-1]:
                    self._splits = False  # a block may get part of a batch in no way seen here
                elif not self._has_batched or isinstance(error, NotCopiesError):
                    # Some models take only one sequence. Single runs raise other errors again.
                    self.batches = False
                else:
                    raise
        return torch.cat(
            [
                self._together([start], [change])
                for start, change in zip(starts, changes, strict=True)
            ]
        )

    def _together(
        self, starts: Sequence[int], changes: Sequence[Callable[..., None]]
    ) -> Float[Tensor, " B"]:
        """Run a batch with a copy of the text per change."""
        copies = len(changes)
        self._changer.changes.clear()
        intervention = Intervention(self._changer)
        for copy, change in enumerate(changes):
            change(intervention, batch=copy if copies > 1 else None)
        skips = self._skips and (copies == 1 or self._blocks.knows_batch)
        with (
            self._batch.of(copies) if copies > 1 else nullcontext(),
            self._blocks.skip(starts, self._batch.of if self._splits else None)
            if skips
            else self._blocks.learn(copies),
        ):
            output = self._run(copies)
        self._changer.require_all_used()
        result = numbers(self._number(output), copies).detach().cpu()
        self._has_batched = self._has_batched or copies > 1
        return result

    def _run(self, copies: int) -> Any:
        """Run the model on a number of copies of the text."""
        return self._call(self.model, copies, **self._options)

    def _may_skip_before(self, begins: Sequence[int]) -> bool:
        """Return True if runs that skip what comes before attention calls give the same result.

        Blocks between two of the calls run unchanged, after a changed run, which left its own
        values in any state that blocks mutate: a block that reads such state gives another result
        when those before it are skipped. The last blocks come first, since an unchanged run of
        blocks leaves the values again that a later block expects.

        Args:
            begins: the numbers of attention calls before these, ascending.
        """
        self._changer.changes.clear()
        for start, stop in zip(reversed(begins), [None, *reversed(begins[1:])], strict=True):
            if not self._blocks.can_skip(start):
                break
            try:
                # The unchanged run had a mode too: under a mode torch uses no fused operators.
                with BaseTorchFunctionMode(), self._blocks.only_between(start, stop) as same:
                    output = self._run(1)
                    number = numbers(self._number(output), 1)[0]
                    same.append(_Result.of(output, number) == self._result)
            except Exception:  # noqa: BLE001 - without the skipped blocks it may fail in any way
                return False
            if not all(same):
                return False
        return True


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
