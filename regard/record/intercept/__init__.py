"""Everything that sees or changes the attention calls of a model."""
