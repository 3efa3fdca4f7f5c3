"""Translates public formats of heads, and recognizes those that are not read."""
