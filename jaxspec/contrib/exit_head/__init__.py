"""A trained exit after a target's first layers."""
