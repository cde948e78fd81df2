"""The health of attention while a model is trained: what each head does, alarms, QK-clip."""

from regard.monitor._monitor import Monitor
from regard.monitor.alarms import Alarm, AlarmWarning, Alert
from regard.monitor.clip import QKClip
from regard.monitor.history import Head
from regard.monitor.writers import JSONLinesWriter, Writer, WriterWarning

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
