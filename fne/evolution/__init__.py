"""Populations: genomes, selection, crossover, mutation, fronts, seeded perturbations, and their evaluation.

Everything is a function of tensors or an object without nodes; `learning` decides which node computes what.
"""
