"""Integrations, one module per library, which needs that library."""
