"""Attention to look at: tables in the terminal, figures, what a notebook shows.

What to look at is read off the patterns here (`read_heads`); how it is shown is up to the modules
`regard.view.terminal` and `regard.view.summary`, which need rich, `regard.view.plot`, which needs
matplotlib, and `regard.view.notebook`.
"""

from regard.record.roles import Figures, Role, role_of
from regard.view.reading import HeadReading, Reading, read_heads

__all__ = ["Figures", "HeadReading", "Reading", "Role", "read_heads", "role_of"]
