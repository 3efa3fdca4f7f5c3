"""Drafts with a trained exit."""

from typing import Any

from jaxspec.contrib.exit_head.head import EarlyExitHead
from jaxspec.drafters.early_exit import EarlyExitDrafter


def early_exit_drafter(head: EarlyExitHead, **options: Any) -> EarlyExitDrafter:
    """Returns the drafter that exits where `head` was trained to; `options` are those of `EarlyExitDrafter`."""
    return EarlyExitDrafter(head.layers, head=head, **options)
