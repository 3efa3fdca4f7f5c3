"""Reads quantized weights of safetensors, one file a layout: which tensors hold a weight, and how they are packed."""
