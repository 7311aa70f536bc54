"""Data sets and the ways to deal them to nodes."""
