"""``--device``: where a command computes."""

from __future__ import annotations

import torch

from regard.cli.errors import MisuseError

__all__ = ["device_of"]


def device_of(name: str) -> torch.device:
    """Return the device with a name.

    Raises:
        MisuseError: if torch finds no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise MisuseError(f"--device is {name!r}: expected cpu, or cuda") from None
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if device.type not in {"cpu", accelerator.type if accelerator else "cpu"}:
        available = (
            f"{accelerator.type}: choose that" if accelerator else "no accelerator: choose cpu"
        )
        raise MisuseError(f"--device is {name!r} and torch finds {available}")
    count = 1 if device.type == "cpu" else torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        raise MisuseError(
            f"--device is {name!r} and torch finds {count} of {device.type}: choose "
            f"{device.type}, or {device.type}:0" + f" … {device.type}:{count - 1}" * (count > 1)
        )
    return device
