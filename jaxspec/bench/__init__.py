"""What `jaxspec bench`, `jaxspec plan` and `jaxspec compile-report` run."""
