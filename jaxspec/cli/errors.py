"""Ends a command that cannot go on: with one line for a mistake, silently for an interruption."""

import functools
import os
import sys
from collections.abc import Callable

import typer

_MISTAKE, _INTERRUPTED, _PIPE_CLOSED = 2, 130, 141


def reported(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command report mistakes as `error: ...` on stderr instead of a traceback."""

    @functools.wraps(command)
    def wrapper(*args, **kwargs):
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None
        except BrokenPipeError:
            # Python flushes stdout once more at exit, which would complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(_PIPE_CLOSED) from None
        except (typer.Exit, typer.Abort):  # they are RuntimeErrors too
            raise
        except (ValueError, TypeError, OSError, FloatingPointError, ImportError, RuntimeError) as error:
            # JAX's own are RuntimeErrors, and of many lines.
            text = str(error).strip().partition("\n")[0] if isinstance(error, RuntimeError) else str(error)
            if isinstance(error, OSError) and error.filename and error.strerror:
                text = f"{error.filename}: {error.strerror}"
            typer.secho(f"error: {text or type(error).__name__}", fg=typer.colors.RED, err=True)
            raise typer.Exit(_MISTAKE) from None

    return wrapper
