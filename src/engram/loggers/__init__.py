"""Loggers: console, TensorBoard."""
