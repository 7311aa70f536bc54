"""Models of an expensive objective, and where to evaluate it next."""
