"""Trains a whole model to exit early: LayerSkip (2404.16710)."""
