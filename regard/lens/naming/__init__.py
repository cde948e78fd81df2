"""Names what each head does: a role, from scores compared with controls."""

from typing import TYPE_CHECKING

from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard.lens.naming.head_scores import heads
    from regard.lens.naming.heads import Heads, HeadScores
    from regard.lens.naming.probe import probe

__all__ = ["HeadScores", "Heads", "heads", "probe"]

_HOMES = {
    "heads": "head_scores",
    "Heads": "heads",
    "HeadScores": "heads",
    "probe": "probe",
}

make_lazy(__name__, _HOMES)
