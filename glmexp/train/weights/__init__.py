"""Trained weights: written in the forms in which they are used, and read again."""
