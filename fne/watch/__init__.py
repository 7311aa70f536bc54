"""What an experimenter sees: progress, history, TensorBoard, tables, plots.

Nothing here changes a run.
"""
