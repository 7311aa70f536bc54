"""Data sets, and the partitions that deal them to nodes; each module registers the data set that it loads.

No module here knows a model or a method; `fne.data.eeg` has the loaders of EEG recordings.
"""
