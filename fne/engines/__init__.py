"""Engines: where the nodes are, and how a request reaches them.

What happens to the answers is the same for every engine and stands in `federation`.
"""
