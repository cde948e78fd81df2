"""Shapes and dtypes of tensors in annotations, such as ``Float[Tensor, "L D"]``: jaxtyping's names.

Annotations are never evaluated at run time, so that nobody needs jaxtyping; type checkers and tests
read them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Complex, Float, Int, Shaped
else:
    Bool = Complex = Float = Int = Shaped = Any

__all__ = ["Bool", "Complex", "Float", "Int", "Shaped"]
