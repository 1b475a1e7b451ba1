"""Episodic memory and control: what makes this library itself (Sections 3.1 to 3.3)."""
