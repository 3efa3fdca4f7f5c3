"""Decodes speculatively: `generate`, one round, and the loops over rounds."""
