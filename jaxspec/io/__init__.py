"""Reads and writes files: errors that name the place, digests, the cache folder. Imports nothing else of jaxspec."""
