"""The loop: `generate`, and one round of it."""
