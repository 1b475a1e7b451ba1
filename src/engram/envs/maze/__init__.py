"""Mazes: the paper's grid worlds, for Gymnasium and in JAX."""
