"""What whoever runs the engine allows, as ``additional_config={"regard": {…}}``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of what is kept; a request above one is not read further, as its answer says.

    Attributes:
        answer_mib: the readouts of one request.
        recording_mib: queries and keys of one request that is recorded.
        memory_mib: all answers that were not taken, and all that is read; the oldest answers go
            first.
        recordings: an existing folder for recordings; None refuses them.
        recordings_mib: that folder.
    """

    answer_mib: int = 64
    recording_mib: int = 256
    memory_mib: int = 1024
    recordings: str | None = None
    recordings_mib: int = 4096

    @classmethod
    def of(cls, configuration: Mapping[str, Any]) -> Limits:
        """Take them out of an engine's ``additional_config``.

        Raises:
            ValueError: for an unknown name, a limit that is not a positive whole number, or a
                folder that is not there.
            TypeError: for anything but a mapping.
        """
        own = configuration.get("regard", {})
        names = [field.name for field in fields(cls)]
        if not isinstance(own, Mapping):
            raise TypeError(f"additional_config['regard'] must be a mapping, but is {own!r}")
        if unknown := sorted(own.keys() - set(names)):
            raise ValueError(
                f"additional_config['regard'] has {unknown}; it may have {', '.join(names)}"
            )
        limits = cls(**own)
        for name in names:
            value = getattr(limits, name)
            if name != "recordings" and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of MiB above 0, but is {value!r}")
        if limits.recordings is not None and not Path(limits.recordings).is_dir():
            raise ValueError(f"recordings must be an existing folder, but is {limits.recordings!r}")
        return limits
