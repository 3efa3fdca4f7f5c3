"""Enumerates rounds of speculative decoding exactly, over every draft and every outcome."""
