"""Data sets and the partitions that deal them to nodes; each file registers what it loads.

Nothing here knows a model or a method; `data.eeg` has what EEG files need.
"""
