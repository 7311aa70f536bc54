"""A run from its config to its summary: parts, run folder, checkpoints, results.

The command line is in `cli`; the display of a run is in `watch`.
"""
