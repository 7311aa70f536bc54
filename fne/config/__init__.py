"""The way from a YAML file to a checked, fully resolved config, and the registry of everything that has a name.

The code that a config configures stands elsewhere; nothing here imports torch before it must.
"""
