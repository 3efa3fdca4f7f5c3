"""Drafts with a trained exit."""

from typing import Any

from jaxspec.contrib.exit_head.head import EarlyExitHead
from jaxspec.drafters.early_exit import EarlyExitDrafter


def early_exit_drafter(head: EarlyExitHead, **options: Any) -> EarlyExitDrafter:
    """Returns the drafter that exits where `head` was trained to.

    Args:
      head: the exit.
      **options: those of `EarlyExitDrafter`.

    Example:
      >>> from jaxspec.contrib import exit_head
      >>> exit_head.early_exit_drafter(exit_head.init(target, key, layers=2), k=3).layers
      2
    """
    return EarlyExitDrafter(head.layers, head=head, **options)
