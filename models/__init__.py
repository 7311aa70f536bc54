"""Models: torch modules built from the shape of the data, output logits."""
