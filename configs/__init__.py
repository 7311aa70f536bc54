"""Ready-made configurations: `fne train NAME` finds them.

Each is one YAML file whose first line says what it shows; nothing here is code.
"""
