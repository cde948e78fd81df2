"""Cache eviction: which keys to keep, and what that changes."""
