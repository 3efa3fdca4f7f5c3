"""Text in, text out: `SpeculativeDecoder` and what it is made of."""
