"""Surrogates: cheap models of an expensive objective, and the choice of the points at which to evaluate it next.

The modules here compute on tensors alone; rounds and nodes are in `search`.
"""
