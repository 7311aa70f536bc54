"""Models: torch modules that are built from the shape of the data and output logits.

Layers for many models at once stand beside them; how a population is evaluated stands in `evolution`.
"""
