"""The gallery, which takes minutes to compute: ``python -m regard_site.gallery`` makes it once.

Each exhibit is a folder with its files and ``exhibit.json``, from which the site makes a page.
"""
