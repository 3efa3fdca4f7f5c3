"""A peer that needs no other package: it answers with the reversed prompt, and has no distribution."""

import threading
from pathlib import Path

from jaxspec.bench.peers.table import Peer
from jaxspec.bench.peers.worker import Loaded, Request
from jaxspec.checkpoints.gguf import read_gguf


def _write(model, folder, dtype):
    (folder / "weights").write_text(f"{model.vocab_size} {dtype}")
    return folder / "weights"


def _vocab_size(path):
    if path.suffix == ".gguf":
        return read_gguf(path).tensors["token_embd.weight"].shape[0]
    return int(path.read_text().split()[0])


class Backwards:
    modes = ("plain", "lookup")

    def __init__(self, loaded: Loaded):
        print("this is no answer", flush=True)
        self.busy = Path(loaded.model).with_name("busy")
        self.vocab_size = _vocab_size(Path(loaded.model))

    def answer(self, mode: str, request: Request) -> list[int]:
        if request.max_new_tokens == 13:
            raise ValueError("thirteen is too many")
        if request.max_new_tokens == 14:
            self.busy.write_text("fourteen take for ever")
            threading.Event().wait()
        return [id % self.vocab_size for id in (request.prompt * 9)[::-1]][: request.max_new_tokens]


PEER = Peer(f"{__name__}:Backwards", ("pytest",), _write)
READER = Peer(f"{__name__}:Backwards", ("pytest",), _write, reads=".gguf")
MISSING = Peer(f"{__name__}:Backwards", ("no-such-package",), _write)
