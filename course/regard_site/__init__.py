"""The site: a folder of HTML made of the documentation's Markdown, the docstrings and reports.

``python -m regard_site build/site`` writes it. `sources` says which pages there are, `markup` turns
Markdown into HTML, `reference` reads the docstrings, `build` puts all of it together.
"""
