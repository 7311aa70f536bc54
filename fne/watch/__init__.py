"""Monitoring of runs: metrics, progress, history, TensorBoard, tables and plots.

Nothing in this package changes the result of a run.
"""
