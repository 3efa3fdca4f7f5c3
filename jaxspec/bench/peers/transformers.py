"""Runs Hugging Face transformers: plain, prompt lookup, and assisted by a draft model."""

from typing import Any

import torch  # pyright: ignore[reportMissingImports] (an optional package)
from transformers import AutoModelForCausalLM

from jaxspec.bench.peers.worker import Loaded, Request

LOOKUP = 10  # there is no default; this is Spec-Bench's


class Transformers:
    """Runs the `generate` of a Hugging Face folder, on the CPU."""

    def __init__(self, loaded: Loaded):
        """Loads the models."""
        torch.set_num_threads(loaded.threads)
        dtype = getattr(torch, loaded.dtype)
        load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()  # noqa: E731
        self._model: Any = load(loaded.model)  # transformers' annotations do not know its own generate
        self._ways = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": LOOKUP}}
        if loaded.draft is not None:
            self._ways["draft"] = {"assistant_model": load(loaded.draft)}
        self.modes = tuple(self._ways)

    def answer(self, mode: str, request: Request) -> list[int]:
        torch.manual_seed(request.seed)
        prompt = torch.tensor([request.prompt])
        sampling = {"do_sample": False}
        if request.temperature > 0:
            sampling = {"do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            tokens = self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=request.max_new_tokens,
                eos_token_id=request.stop or None,
                pad_token_id=0,
                **sampling,
                **self._ways[mode],
            )
        return tokens[0, len(request.prompt) :].tolist()
