"""Kernels for NVIDIA GPUs, written in Pallas and compiled by Triton."""
