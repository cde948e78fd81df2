"""What each head of a model does, over a corpus."""
