"""What methods that solve a problem share: node tasks, rounds with surrogates, fronts, the release at the end.

The methods themselves, one a file, stand in `strategies`.
"""
