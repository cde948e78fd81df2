"""Attention to look at: tables in the terminal, a page for the browser.

What to look at is read off the patterns here (`read_heads`); how it is shown is up to the modules
`regard.view.terminal` and `regard.view.summary`, which need rich, and `regard.view.page`.
"""

from regard.record.roles import Figures, Role, role_of
from regard.view.reading import HeadReading, Reading, read_heads

__all__ = ["Figures", "HeadReading", "Reading", "Role", "read_heads", "role_of"]
