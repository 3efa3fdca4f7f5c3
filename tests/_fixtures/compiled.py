"""Reads the text of compiled programs."""

import re


def computations_in_loops(program: str) -> str:
    """The text of every computation that a `while` runs, directly or through calls and branches."""
    blocks = {m[1]: m[0] for m in re.finditer(r"^(?:ENTRY )?%?([\w.\-]+) .*?^}", program, re.M | re.S)}
    pending = re.findall(r"body=%?([\w.\-]+)", program)
    seen: dict[str, str] = {}
    while pending:
        name = pending.pop()
        if name not in seen:
            seen[name] = blocks[name]
            pending += [other for other in re.findall(r"%([\w.\-]+)", blocks[name]) if other in blocks]
    return "\n".join(seen.values())
