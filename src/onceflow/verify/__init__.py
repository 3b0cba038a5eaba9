"""Proof: faults on a private cluster and a real pipeline, histories of what clients saw, a checker of them, and a simulator."""
