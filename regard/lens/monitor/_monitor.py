"""`Monitor`: reads quantities of every head during the updates of a training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard._arguments import check_whole
from regard._decorators import block
from regard._display import show
from regard._modules import unwrapped
from regard._shapes import Float
from regard.intercept import observe_calls, replace_attention
from regard.lens.monitor._ranks import is_main
from regard.lens.monitor._reader import UpdateReader
from regard.lens.monitor.alarms import Alarm, AlarmWarning, Alert, alerts_of, messages
from regard.lens.monitor.clip import QKClip, factors
from regard.lens.monitor.history import Head, History, UpdateReading
from regard.lens.monitor.writers import Writer, WriterWarning, scalars_of
from regard.pattern.readout import Readout, check_readout
from regard.pattern.readouts import Entropy, Mass, MaxScore
from regard.record import RecordError
from regard.record.readings import names_of
from regard.record.sites import Sites

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from torch.distributed import ProcessGroup

Readouts = Sequence[Readout[Any, Any]] | Mapping[str, Readout[Any, Any]]

_DEFAULT: dict[str, Readout[Any, Any]] = {
    "max_logit": MaxScore("head"),
    "entropy": Entropy(),
    "first_token": Mass(0),
}


class Monitor:
    """Reads quantities of each head during every n-th update of a training run.

    By default three quantities: ``max_logit``, the largest scaled score, which grows
    when training diverges; ``entropy``, the mean over all rows that see a key, in nats, which
    falls when attention collapses; and ``first_token``, the mean weight of a row on key 0, which
    need not be where a head rests: finding that, as `regard.lens.sinks` does, takes what every key
    of every text receives, and a reading has one number a head. An update covers one step of the
    optimizer: all batches whose gradients it accumulates, on all ranks. During other updates the
    model is not touched.

    Args:
        model: read only the calls of this model; None reads those of all models. A model of
            `transformers` with "eager" attention must be given; it computes with
            `regard.attention` in the updates that are read, as under `record`.
        every: read the updates whose number is a multiple of this, from 0 on.
        read: readouts, named by their titles, or a dictionary of them by name. Each is reduced to
            a number per head: the largest if the readout's `reduction` is ``"max"``, else the mean
            over sequences, rows that see a key, and the result's other axes.
        alarms: bounds to check at each reading.
        on_alarm: called with each `Alert`, on every rank.
        writers: called after each reading with the update and its numbers, on rank 0.
        group: the process group whose ranks each compute a part of the batch; None is the default
            group, if there is one.

    Raises:
        TypeError: for arguments of the wrong type.
        ValueError: for `every` below 1, and an alarm on a quantity that is not read.

    Example:
        >>> import regard, torch
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> monitor = regard.Monitor(layer, every=2)
        >>> for _ in range(5):
        ...     with monitor.update():
        ...         layer(torch.randn(1, 5, 6)).sum().backward()
        >>> monitor
        Monitor(3 readings of 2 heads: max_logit, entropy, first_token)
        >>> monitor.updates
        (0, 2, 4)
        >>> monitor.values("entropy").shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        every: int = 100,
        read: Readouts = _DEFAULT,
        alarms: Sequence[Alarm] = (),
        on_alarm: Callable[[Alert], object] | None = None,
        writers: Sequence[Writer] = (),
        group: ProcessGroup | None = None,
    ) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(
                f"model must be a torch.nn.Module or None, but is {type(model).__name__}"
            )
        check_whole(every, "every")
        if every < 1:
            raise ValueError(f"every must be at least 1, but is {every}")
        self._readouts = _named(read)
        self._alarms = _checked(alarms, self._readouts)
        self._on_alarm = on_alarm
        self._writers = list(writers)
        self._model = None if model is None else unwrapped(model)
        self._every = every
        self._group = group
        self._sites = Sites(self._model)
        self._history = History()
        self._alerts: list[Alert] = []
        self._number = -1
        """Number of the last update that began."""
        self._reader: UpdateReader | None = None
        """Reader of the current update, if it is read."""
        self._exit_stack = ExitStack()

    # Around an update

    @block("update(...)")
    def update(self, number: int | None = None) -> Iterator[None]:
        """Read the attention calls of an update inside the block, if it is one to read.

        The block must contain the forward and backward passes of all its batches; the optimizer's
        step may be in it or after it. Calls in evaluation mode without gradients are ignored, as
        are those that a checkpoint recomputes.

        Args:
            number: the number of earlier updates; None continues from the last.

        Raises:
            RecordError: if no attention call was ever seen, if a call can't be represented
                exactly, if ranks read different layers, or in a backward pass after the block
                in which checkpoints recompute calls that `regard.attention` made in it.
            TypeError: for a readout that returns positions.

        Warns:
            AlarmWarning: when an alarm goes off; on rank 0.
            WriterWarning: when a writer fails, which is then no longer called.
        """
        self.begin(number)
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        self.end()

    def begin(self, number: int | None = None) -> None:
        """Begin an update, as `update` does; for callbacks, which have no block."""
        self.cancel()
        before = self._number
        number = before + 1 if number is None else number
        check_whole(number, "number")
        if number < 0:
            raise ValueError(f"number counts updates from 0, but is {number}")
        self._number = number
        # Some trainers count several steps per update, and so may skip a multiple.
        passed_over = 0 <= before < number and before // self._every != number // self._every
        if number % self._every and not passed_over:
            return
        self._sites.restart()
        reader = UpdateReader(self._model, self._sites, self._readouts)
        with ExitStack() as stack:
            if self._model is not None:
                stack.enter_context(replace_attention(self._model))
            stack.enter_context(observe_calls(reader))
            self._exit_stack = stack.pop_all()
        self._reader = reader

    def end(self) -> None:
        """End an update: take its reading, check the alarms, call the writers."""
        reader, self._reader = self._reader, None
        self._exit_stack.close()
        if reader is None:
            return
        reading = reader.reading(self._number, self._group)
        if not reading.places:
            if self._history.readings:
                return  # such as an update of another part of the model
            raise RecordError(self._nothing_seen())
        self._history.add(reading)
        self._report(reading)

    def cancel(self) -> None:
        """Discard the current update, if there is one, without a reading."""
        self._reader = None
        self._exit_stack.close()

    # What was read

    @property
    def updates(self) -> tuple[int, ...]:
        """Return the numbers of the updates that were read."""
        return tuple(reading.update for reading in self._history.readings)

    @property
    def quantities(self) -> tuple[str, ...]:
        """Return the names of the quantities; before the first reading, those of the readouts."""
        readings = self._history.readings
        return tuple(readings[-1].values if readings else self._readouts)

    @property
    def heads(self) -> tuple[Head, ...]:
        """Return the heads that were read: kind of attention, layer, head."""
        return self._history.heads

    def values(self, quantity: str) -> Float[Tensor, "U N"]:
        """Return a quantity of N heads at U updates, ``(U, N)``, with columns as in `heads`.

        NaN if a layer was not called in an update.

        Raises:
            KeyError: for a quantity that is not read.
        """
        self._require(quantity)
        return self._history.values(quantity)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """Return the alarms that went off, in the order of their updates."""
        return tuple(self._alerts)

    def frame(self) -> pd.DataFrame:
        """Return the readings as a pandas data frame, a row per update and head."""
        import pandas as pd

        return pd.DataFrame(
            {"update": reading.update, **head._asdict()}
            | {name: float(values[place]) for name, values in reading.values.items()}
            for reading in self._history.readings
            for place, head in enumerate(reading.heads)
        )

    def qk_clip(self, tau: float = 100.0) -> tuple[QKClip, ...]:
        """Return the factors of QK-clip for layers with a head whose largest score is above `tau`.

        They are those of the last update, to be applied to the weights once, after the optimizer's
        step. Empty if that update was not read; so ``every=1`` is needed for the paper's method.

        Args:
            tau: τ, the largest score that is not clipped; 100 in the paper.

        Raises:
            ValueError: if no `MaxScore` is read, or tau is not a number above 0.

        Source: Kimi Team 2025, arXiv:2507.20534, section 2.1 and algorithm 1.

        Example:
            >>> import regard, torch
            >>> from regard.nn import MultiHeadAttention
            >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
            >>> x, monitor = torch.ones(1, 5, 6), regard.Monitor(layer, every=1)
            >>> with monitor.update():
            ...     layer(x).sum().backward()
            >>> largest = monitor.values("max_logit")[-1].max()
            >>> monitor.qk_clip(tau=2 * abs(float(largest)))
            ()
        """
        if not 0 < tau < torch.inf:
            raise ValueError(f"tau must be a finite number above 0, but is {tau}")
        readouts = self._readouts.items()
        quantity = next((name for name, one in readouts if isinstance(one, MaxScore)), None)
        if quantity is None:
            raise ValueError(
                f"QK-clip needs the largest scores, but of {list(self._readouts)} none is a "
                "MaxScore; read one"
            )
        readings = self._history.readings
        if not readings or readings[-1].update != self._number:
            return ()
        return tuple(factors(readings[-1], quantity, tau))

    def plot(self, quantity: str = "max_logit") -> Figure:
        """Draw a quantity: heads down, updates across, with a mark for each alarm.

        Raises:
            ImportError: without matplotlib, which the extra ``plot`` installs.
            KeyError: for a quantity that is not read.
            ValueError: if nothing was read yet.
        """
        self._require(quantity)
        if not self._history.readings:
            raise ValueError("no update was read yet, so there is nothing to draw")
        figure: Figure = show("plot_monitor", self, quantity)
        return figure

    def __repr__(self) -> str:
        count = len(self._history.readings)
        readings = f"{count} reading{'' if count == 1 else 's'} of {len(self.heads)} heads"
        return f"Monitor({readings}: {', '.join(self.quantities)})"

    # After an update

    def _report(self, reading: UpdateReading) -> None:
        """Check the alarms; pass numbers to the writers and alerts to `on_alarm`."""
        for alarm in self._alarms:
            self._require(alarm.quantity)
        alerts = alerts_of(self._alarms, self._history.readings)
        self._alerts = [alert for alert in self._alerts if alert.update < reading.update]
        self._alerts += alerts
        if is_main(self._group):
            self._write(reading)
            for message in messages(alerts):
                warnings.warn(message, AlarmWarning, stacklevel=5)
        if self._on_alarm is not None:
            for alert in alerts:
                self._on_alarm(alert)

    def _write(self, reading: UpdateReading) -> None:
        """Call the writers; one that fails does not end the training run."""
        scalars = scalars_of(reading)
        for writer in tuple(self._writers):
            try:
                writer(reading.update, scalars)
            except Exception as error:  # noqa: BLE001 - whatever another library raises
                self._writers.remove(writer)
                message = (
                    f"{_name(writer)} failed at update {reading.update} and gets no more numbers: "
                    f"{type(error).__name__}: {error}"
                )
                warnings.warn(message, WriterWarning, stacklevel=6)

    def _require(self, quantity: str) -> None:
        if quantity not in self.quantities:
            raise KeyError(
                f"{quantity!r} is not read; there is {', '.join(map(repr, self.quantities))}"
            )

    def _nothing_seen(self) -> str:
        whose = "any model" if self._model is None else type(self._model).__name__
        return (
            f"no attention call of {whose} was seen in update {self._number}; run its forward pass "
            "inside the update, on this thread, in this task and in training mode; attention that "
            "it writes out by itself can't be seen: let it call "
            "torch.nn.functional.scaled_dot_product_attention or regard.attention"
        )


def _named(read: Readouts) -> dict[str, Readout[Any, Any]]:
    """Check the readouts, and name those without a name."""
    if isinstance(read, Readout) or not isinstance(read, (Sequence, Mapping)) or not read:
        raise TypeError(
            "read must be a list of readouts, such as [regard.readouts.Entropy()], or a dictionary "
            f"of them by name, but is {read!r}"
        )
    if isinstance(read, Mapping):
        named = dict(read)
    else:
        for readout in read:
            check_readout(readout)
        named = dict(zip(names_of(read), read, strict=True))
    for readout in named.values():
        check_readout(readout)
    return named


def _checked(
    alarms: Sequence[Alarm], readouts: Mapping[str, Readout[Any, Any]]
) -> tuple[Alarm, ...]:
    """Check that each alarm is on a quantity that is read."""
    for alarm in alarms:
        if not isinstance(alarm, Alarm):
            raise TypeError(f"alarms must be regard.lens.Alarm, but one is {alarm!r}")
        named = (
            alarm.quantity == name or alarm.quantity.startswith(f"{name}_") for name in readouts
        )
        if not any(named):  # a readout of several tensors has a quantity NAME_FIELD for each
            raise ValueError(
                f"{alarm} is of a quantity that is not read; there is "
                f"{', '.join(map(repr, readouts))}"
            )
    return tuple(alarms)


def _name(writer: Writer) -> str:
    return getattr(writer, "__name__", type(writer).__name__)
