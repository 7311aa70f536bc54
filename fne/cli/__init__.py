"""The `fne` command: what its words mean, and what it prints.

What a command does stands in `run`, so that Python can call it.
"""
