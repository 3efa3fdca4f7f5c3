"""Continues text with text: `SpeculativeDecoder` and what it is made of."""
