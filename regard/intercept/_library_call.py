"""One call of a library's attention: what is computed, and how the library lays its result out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from regard.intercept._call import Call


@dataclass(frozen=True, eq=False, kw_only=True)
class LibraryCall:
    """One call of a library's attention."""

    call: Call
    """With query, key and value ``(B, H, L, D)``."""
    to_heads: Callable[[Tensor], Tensor]
    """Lays the library's context out as ``(B, H, L, Dv)``."""
    from_heads: Callable[[Tensor], Tensor]
    """Lays a context ``(B, H, L, Dv)`` out as the library does."""
    returns_more: str
    """The options by which it returns more than the context."""
