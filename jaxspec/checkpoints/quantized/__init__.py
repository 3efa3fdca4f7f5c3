"""Reads quantized weights in safetensors; a module for each layout says which tensors hold a weight, and how."""
