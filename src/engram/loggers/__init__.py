"""Loggers: console, TensorBoard, Weights & Biases, trackio."""
