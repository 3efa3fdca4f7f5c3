"""LayerSkip (2404.16710): trains a whole model to exit early."""
