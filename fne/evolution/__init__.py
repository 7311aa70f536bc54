"""What a population is, how it is evaluated and how it varies."""
