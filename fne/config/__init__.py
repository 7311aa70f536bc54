"""Configuration: from a YAML file to a checked, fully resolved config, and the registry of all named objects.

The code that a config configures is in other folders; the modules of this folder import torch only when they must.
"""
