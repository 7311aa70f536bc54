"""What methods that train models share: node tasks, local training, averaging, and server halves by family.

The methods themselves, one a file, stand in `strategies`.
"""
