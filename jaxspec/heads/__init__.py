"""Heads over the target's hidden states: the trained parts of drafters that share the target's embedding."""
