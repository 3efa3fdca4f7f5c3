"""`python -m jaxspec` is the `jaxspec` command."""

from jaxspec.cli import main

if __name__ == "__main__":
    main()
