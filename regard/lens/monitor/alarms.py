"""Alarms: bounds on what heads do, checked at each reading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from regard._arguments import check_whole
from regard.lens.monitor.history import Head, UpdateReading
from regard.record.sites import AttentionKind


class AlarmWarning(UserWarning):
    """An alarm of a `Monitor`: a head is out of its bounds.

    Example:
        >>> import regard, torch, warnings
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> alarm = regard.lens.Alarm("entropy", above=0.1)
        >>> monitor = regard.Monitor(layer, every=1, alarms=[alarm])
        >>> with warnings.catch_warnings(record=True) as shown:
        ...     warnings.simplefilter("always")
        ...     with monitor.update():
        ...         layer(torch.randn(1, 5, 6)).sum().backward()
        >>> shown[0].category.__name__
        'AlarmWarning'
    """


@dataclass(frozen=True)
class Alarm:
    """A bound on a quantity of every head, or on how far it moved since the first readings.

    It goes off when a head has been out of the bound for `readings` readings in a row, and again
    only after the head was within the bound. NaN is out of every bound.

    In a pretrained model some heads rest on one key from the start, with an entropy near 0; a bound
    on the quantity itself rings for them at once. With `baseline` the bound is on the change.

    Args:
        quantity: name of the quantity, such as ``"max_logit"``.
        above: upper bound; pass this or `below`.
        below: lower bound.
        readings: number of readings in a row that must be out of the bound.
        baseline: the bound is on the quantity minus its mean over the head's first so many
            readings, during which only NaN is out of it; None for a bound on the quantity.

    Raises:
        TypeError: for arguments of the wrong type.
        ValueError: unless exactly one bound is given, and for fewer than one reading.

    Example:
        >>> import regard
        >>> print(regard.lens.Alarm("entropy", below=0.1, readings=5))
        entropy below 0.1 for 5 readings
        >>> print(regard.lens.Alarm("entropy", below=-1, baseline=3))
        entropy below -1 from its first 3 readings
    """

    quantity: str
    above: int | float | None = field(default=None, kw_only=True)
    below: int | float | None = field(default=None, kw_only=True)
    readings: int = field(default=1, kw_only=True)
    baseline: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.quantity, str):
            raise TypeError(f"quantity must be a name, but is {self.quantity!r}")
        if (self.above is None) == (self.below is None):
            raise ValueError(
                f"an alarm has one bound, but above={self.above!r} and below={self.below!r}; for "
                "two, give two alarms"
            )
        bound = self.below if self.above is None else self.above
        if not isinstance(bound, (int, float)) or math.isnan(bound):
            raise TypeError(f"a bound must be a number, but is {bound!r}")
        for name, count in (("readings", self.readings), ("baseline", self.baseline)):
            if count is None:
                continue
            check_whole(count, name)
            if count < 1:
                raise ValueError(f"{name} must be at least 1, but is {count}")
        if self.baseline is not None and self.is_out(0.0):
            raise ValueError(
                f"with a baseline the bound is on a change, and no change must be within it, but "
                f"above={self.above!r}, below={self.below!r}"
            )

    @property
    def bound(self) -> float:
        """Return the bound that was given."""
        bound = self.below if self.above is None else self.above
        assert bound is not None, "one of the two is given"
        return float(bound)

    def is_out(self, value: float) -> bool:
        """Return True if a number, or a change of one, is out of the bound; NaN is."""
        within = value <= self.bound if self.above is not None else value >= self.bound
        return not within

    @property
    def condition(self) -> str:
        """Return the bound in words: ``above 100``, ``below 0.1 for 5 readings``."""
        side = "above" if self.above is not None else "below"
        lasting = f" for {self.readings} readings" if self.readings > 1 else ""
        since = ""
        if self.baseline is not None:
            count = "" if self.baseline == 1 else f"{self.baseline} "
            since = f" from its first {count}reading{'s'[: self.baseline > 1]}"
        return f"{side} {self.bound:g}{since}{lasting}"

    def __str__(self) -> str:
        return f"{self.quantity} {self.condition}"


@dataclass(frozen=True)
class Alert:
    """An alarm that a head set off.

    Attributes:
        alarm: the alarm.
        update: number of the update, from 0.
        kind, layer, head: the head.
        name: path of the module that attends.
        value: the value of the quantity; NaN sets every alarm off.
        change: how far that is from the first readings; None for an alarm on the value itself.

    Example:
        >>> import regard
        >>> from regard.lens.monitor import Alert
        >>> alarm = regard.lens.Alarm("max_logit", above=100)
        >>> alert = Alert(alarm, update=7, kind="self", layer=3, head=5, name="", value=123.4)
        >>> print(alert)
        update 7: max_logit of layer 3, head 5 is 123.4, above 100
    """

    alarm: Alarm
    update: int
    kind: AttentionKind
    layer: int
    head: int
    name: str
    value: float
    change: float | None = None

    @property
    def number(self) -> float:
        """Return what is out of the bound: the change, or the value."""
        return self.value if self.change is None else self.change

    def __str__(self) -> str:
        head = Head(self.kind, self.layer, self.head)
        where = f"{head} ({self.name})" if self.name else f"{head}"
        quantity, condition = self.alarm.quantity, self.alarm.condition
        change = "" if self.change is None else f", a change of {self.change:+.4g}"
        return (
            f"update {self.update}: {quantity} of {where} is {self.value:.4g}{change}, {condition}"
        )


def alerts_of(alarms: Sequence[Alarm], readings: Sequence[UpdateReading]) -> list[Alert]:
    """Return the alerts of the last reading, the head furthest out first."""
    return [alert for alarm in alarms for alert in _alerts(alarm, readings)]


def _alerts(alarm: Alarm, readings: Sequence[UpdateReading]) -> list[Alert]:
    last = readings[-1]
    names = {head: place.name for place in last.places for head in place.all_heads()}
    baselines = {} if alarm.baseline is None else _baselines(alarm, readings)
    lasting = _out(alarm, readings[-1:], baselines)
    for number in range(2, alarm.readings + 1):
        lasting &= _out(alarm, readings[-number : len(readings) - number + 1], baselines)
    before = _out(alarm, readings[-alarm.readings - 1 : -alarm.readings], baselines)
    values = last.by_head(alarm.quantity)
    alerts = [
        Alert(
            alarm,
            last.update,
            *head,
            name=names[head],
            value=values[head],
            change=values[head] - baselines[head].mean if head in baselines else None,
        )
        for head in last.heads
        if head in lasting - before
    ]
    sign = -1 if alarm.above is not None else 1
    return sorted(alerts, key=lambda a: (not math.isnan(a.number), sign * a.number))


@dataclass(frozen=True)
class _Baseline:
    """The first readings of a head."""

    mean: float
    stop: int
    """The update after which changes are measured."""


def _baselines(alarm: Alarm, readings: Sequence[UpdateReading]) -> dict[Head, _Baseline]:
    """Return the baseline of each head that has as many readings as the alarm says."""
    assert alarm.baseline is not None, "the alarm is of a change"
    first: dict[Head, list[float]] = {}
    baselines: dict[Head, _Baseline] = {}
    for reading in readings:
        for head, value in reading.by_head(alarm.quantity).items():
            if head in baselines:
                continue
            own = first.setdefault(head, [])
            own.append(value)
            if len(own) == alarm.baseline:
                baselines[head] = _Baseline(math.fsum(own) / len(own), reading.update)
        if len(baselines) == len(first) and set(readings[-1].heads) <= baselines.keys():
            break
    return baselines


def _out(
    alarm: Alarm, readings: Sequence[UpdateReading], baselines: Mapping[Head, _Baseline]
) -> set[Head]:
    """Return the heads that are out of an alarm's bound in some readings."""
    found = set()
    for reading in readings:
        for head, value in reading.by_head(alarm.quantity).items():
            number = value
            if alarm.baseline is not None:
                own = baselines.get(head)
                # In the first readings there is no change, but NaN stays NaN.
                if own is None or reading.update <= own.stop:
                    number = value - value
                else:
                    number = value - own.mean
            if alarm.is_out(number):
                found.add(head)
    return found


def messages(alerts: Iterable[Alert]) -> list[str]:
    """Return a message per alarm that went off; it names the head furthest out."""
    by_alarm: dict[Alarm, list[Alert]] = {}
    for alert in alerts:
        by_alarm.setdefault(alert.alarm, []).append(alert)
    return [f"{first}{_as_well(others)}" for first, *others in by_alarm.values()]


def _as_well(others: Sequence[Alert]) -> str:
    if not others:
        return ""
    return f"; so is that of {len(others)} more head{'' if len(others) == 1 else 's'}"
