"""Decodes speculatively: `generate`, one round of it, and its rounds one by one."""
