"""Python files as syntax trees, each parsed once for all tests that look at the sources."""

import ast
import functools


@functools.cache
def tree(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def nodes(path):
    """All nodes of a file's tree."""
    return tuple(ast.walk(tree(path)))
