"""Collects the model families, one file each: configuration, and the names of tensors in each kind of checkpoint."""
