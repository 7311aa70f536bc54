"""Models: torch modules that are built from the shape of the data and output logits.

Layers for many models at once are beside them; `evolution` evaluates populations.
"""
