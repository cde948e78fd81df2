"""Readouts and weights as labelled arrays of xarray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.record import Reading
from regard.record.layer import Tokens

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["array"]


def array(
    reading: Reading, *, tokens: Tokens | None = None, source_tokens: Tokens | None = None
) -> xr.DataArray:
    """Make a labelled array of a readout of all layers, ``(layer, batch, head, …)``.

    Its axes have the reading's names. Layers, heads and queries are labelled by their indices in
    the model, also where a part was kept; keys are counted. An array of all weights is that of
    `Recording.weights`.

    Args:
        reading: one readout of ``recording.read(...)``.
        tokens: a recording's `tokens`: the text at each query and key, in the coordinates
            ``query_token`` and ``key_token``, by batch if there is that axis, and position.
        source_tokens: of cross-attention, the recording's `source_tokens`, which are its keys.

    Raises:
        ModuleNotFoundError: without xarray.
        ValueError: if layers differ in shape, or in the indices of their heads or queries; or if
            there are fewer tokens than positions.

    Example:
        >>> import regard, torch
        >>> from regard.integrations.xarray import array
        >>> layer = regard.nn.MultiHeadAttention(6, 2, mask=regard.causal())
        >>> with regard.record(layer) as recording:
        ...     _ = layer(torch.randn(1, 5, 6))
        >>> entropy = recording.read(regard.readouts.Entropy())["entropy"]
        >>> array(entropy).sel(head=1, query=4).dims
        ('layer', 'batch')
    """
    try:
        import xarray as xr
    except ModuleNotFoundError as missing:
        if missing.name != "xarray":
            raise
        message = "this needs the library xarray: pip install xarray"
        raise ModuleNotFoundError(message, name="xarray") from None

    values = reading.values.cpu().numpy()
    sizes = dict(zip(reading.axes, values.shape, strict=True))
    coordinates = {axis: _labels(reading, axis, size) for axis, size in sizes.items()}
    found = xr.DataArray(values, coordinates, reading.axes, name=reading.name)
    of_keys = tokens if source_tokens is None else source_tokens
    for axis, given in (("query", tokens), ("key", of_keys)):
        if given is not None and axis in sizes:
            texts = _texts(given, axis, coordinates)
            label = (("batch", axis), texts) if "batch" in sizes else (axis, texts[0])
            found = found.assign_coords({f"{axis}_token": label})
    return found


def _labels(reading: Reading, axis: str, size: int) -> list[int]:
    if axis == "layer":
        return [index for labels in reading.labels for index in labels["layer"]]
    labels = {tuple(each.get(axis, range(size))) for each in reading.labels}
    if len(labels) > 1:
        raise ValueError(
            f"{reading.name} is of other {axis} indices from layer to layer: {sorted(labels)}; "
            "take frame()"
        )
    return [*labels.pop()]


def _texts(tokens: Tokens, axis: str, coordinates: dict[str, list[int]]) -> list[list[str]]:
    batch, positions = len(coordinates.get("batch", [0])), coordinates[axis]
    if len(tokens) != batch or any(len(text) <= max(positions, default=-1) for text in tokens):
        raise ValueError(
            f"the tokens are of {len(tokens)} texts of {[len(text) for text in tokens]} positions, "
            f"but the array is of {batch} and reaches {axis} {max(positions)}"
        )
    return [[text[position] for position in positions] for text in tokens]
