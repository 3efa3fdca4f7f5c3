"""Drafts with several models at the same time, each on its own devices."""

from typing import TYPE_CHECKING

from jaxspec._lazy import lazy

if TYPE_CHECKING:
    from jaxspec.contrib.parallel.drafter import ParallelDrafter as ParallelDrafter
    from jaxspec.contrib.parallel.stack import ModelStack as ModelStack

__getattr__, __dir__ = lazy(__name__, {"drafter": ("ParallelDrafter",), "stack": ("ModelStack",)})
