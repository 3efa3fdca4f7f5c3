"""Generates text from text: `SpeculativeDecoder` and its parts."""
