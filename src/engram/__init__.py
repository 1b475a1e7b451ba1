"""Reinforcement learning with episodic memory."""
