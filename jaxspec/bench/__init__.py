"""Measures speculative decoding, for `jaxspec bench`, `jaxspec plan` and `jaxspec compile-report`."""
