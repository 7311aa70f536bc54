"""What every other folder may use: messages, errors, files, random numbers, and what never leaves a node.

Nothing here imports another folder of the toolkit, and nothing here knows a method, a model or a data set.
"""
