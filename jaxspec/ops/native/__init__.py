"""Computes products and attention for few rows on a CPU, in C++ that is compiled for it on first use."""
