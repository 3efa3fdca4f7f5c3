"""Computes the arithmetic of a pass: products, rotary embeddings, and one file a format of stored weights."""
