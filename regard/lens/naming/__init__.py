"""What each head does, named by controls: a role, and the numbers beside it."""

from regard.lens.naming.head_scores import heads
from regard.lens.naming.heads import Heads, HeadScores

__all__ = ["HeadScores", "Heads", "heads"]
