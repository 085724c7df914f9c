"""Checkpoints: what a run saves on its way, and goes on from."""
