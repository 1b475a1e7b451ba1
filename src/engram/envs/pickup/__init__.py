"""A room with objects to pick up: MiniWorld's PickupObjects, and the same task in JAX."""
