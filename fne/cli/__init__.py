"""The `fne` command: its arguments and its output.

The work of each command is in `run`, so that Python can call it.
"""
