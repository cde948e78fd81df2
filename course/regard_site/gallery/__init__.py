"""The gallery: what takes minutes to compute, made once by ``python -m regard_site.gallery`` and kept.

Each exhibit is a folder with its files and ``exhibit.json``, from which the site makes a page.
"""
