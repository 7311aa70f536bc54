"""Shared parts of methods that solve a problem: node tasks, rounds with surrogates, fronts, the final release.

The methods themselves are in `strategies`, one file each.
"""
