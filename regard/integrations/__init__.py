"""Integrations, a file a library; importing one needs that library."""
