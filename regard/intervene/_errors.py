"""The error of this part of the package."""

from __future__ import annotations

from regard.errors import Error


class InterventionError(Error):
    """A change that can't be made, contradicts another one or was met by no call.

    Example:
        >>> import regard
        >>> from regard.nn import MultiHeadAttention
        >>> layer = MultiHeadAttention(6, 2, mask=regard.causal())
        >>> try:
        ...     with regard.intervene(layer) as change:
        ...         change.ablate(heads=0)  # and no call of the layer that it could be made in
        ... except regard.InterventionError as error:
        ...     print(str(error).partition(":")[0])
        ablate(heads=0, by='zero') was not made
    """
