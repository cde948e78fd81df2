"""Names what each head does: a role, from scores compared with controls."""

from regard.lens.naming.head_scores import heads
from regard.lens.naming.heads import Heads, HeadScores
from regard.lens.naming.probe import probe

__all__ = ["HeadScores", "Heads", "heads", "probe"]
