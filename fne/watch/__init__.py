"""What an experimenter sees: progress, history, TensorBoard, checkpoints, reports."""
