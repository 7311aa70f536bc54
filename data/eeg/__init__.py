"""EEG recordings: find and open files, check, repair and filter values, cut windows, split them by subject.

Helpers that other data sets need as well are in `fne.data`; no module here knows a model or a method.
"""
