"""Shared foundation of the toolkit: messages, contracts, errors, files, random numbers, and secrets of a node.

No module of this folder imports another folder of the toolkit or knows a method, a model or a data set.
"""
