"""A layout that cuts a vocabulary into parts as a mesh does, on one device."""

import dataclasses

from jaxspec.core.layout import Unsharded


@dataclasses.dataclass(frozen=True)
class Cut(Unsharded):
    parts: int

    def vocab_parts(self, size: int) -> int:
        return self.parts if size % self.parts == 0 else 1
