"""EEG recordings: find files, open them, check, repair and filter values, cut windows, split them by subject.

What other data sets need as well stands in `data`; nothing here knows a model or a method.
"""
