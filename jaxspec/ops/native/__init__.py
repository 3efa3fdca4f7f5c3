"""Computes products and attention for few rows on a CPU, in C++, compiled for it when they are first asked for."""
