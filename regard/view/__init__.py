"""Attention to look at.

`regard.view.terminal` and `regard.view.report` need rich, `regard.view.plot` needs matplotlib, and
`regard.view.notebook` needs neither.
"""
