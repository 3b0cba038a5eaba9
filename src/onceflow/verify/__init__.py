"""Proof: histories of what clients saw, a checker of them, and a simulator that makes them."""
