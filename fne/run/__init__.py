"""A run from its config to its summary: its parts, its folder, its checkpoints, its end.

The words of the command line stand in `cli`; what is shown of a run stands in `watch`.
"""
