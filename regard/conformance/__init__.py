"""Whether a function computes attention: cases against the definition, graded by area.

Any function is called as its parameters ask for (torch's, flash's, flex's or regard's) and compared
with the definition in float64, a few lines of torch that stand in every failing case too. It needs
torch alone:

    python -m regard.conformance package.module:function
"""

from regard.conformance.grading import Area, Outcome, Report, check

__all__ = ["Area", "Outcome", "Report", "check"]
