"""Attention during training: a number per head and update, alarms, QK-clip."""

from regard.lens.monitor._monitor import Monitor
from regard.lens.monitor.alarms import Alarm, AlarmWarning, Alert
from regard.lens.monitor.clip import QKClip
from regard.lens.monitor.history import Head
from regard.lens.monitor.writers import JSONLinesWriter, Writer, WriterWarning

__all__ = [
    "Alarm",
    "AlarmWarning",
    "Alert",
    "Head",
    "JSONLinesWriter",
    "Monitor",
    "QKClip",
    "Writer",
    "WriterWarning",
]
