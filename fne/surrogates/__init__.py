"""Cheap models of an expensive objective, and the choice of the points at which to evaluate it next.

They are functions of tensors; rounds and nodes stand in `search`.
"""
