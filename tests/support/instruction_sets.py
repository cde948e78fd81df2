"""The sets of instructions that tests force in turn."""

from regard.backends.native import library

_loaded = library.load()
SETS = _loaded.regard_supported().decode().split(",") if _loaded else []
"""Those that the processor can run, the best first; none where there is no native library."""
