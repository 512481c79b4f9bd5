"""REAL CLOCK: the HTTP service, its rounds, its tokens, and what it tells of itself."""
