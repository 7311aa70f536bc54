"""Shared parts of the methods that train models: node tasks, local training, averaging, server halves by family.

The methods themselves, one per file, are in `strategies`.
"""
