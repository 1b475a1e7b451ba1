"""Experiments too long for tests; each regenerates its files under results/ by one command."""
