"""A verification from its beginning to its end: a world, an engine in it, faults, and what came of it."""
