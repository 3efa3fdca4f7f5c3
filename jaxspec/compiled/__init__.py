"""Reads the cost of `generate` on TPUs and GPUs from programs compiled for them; needs no device."""
