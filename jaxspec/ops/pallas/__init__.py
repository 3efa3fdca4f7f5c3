"""Kernels for TPUs, written in Pallas: attention over the cache, and the write into it."""
