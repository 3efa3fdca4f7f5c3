"""Runs llama.cpp by way of xllamacpp: plain, n-gram lookup, and a draft model."""

import xllamacpp  # pyright: ignore[reportMissingImports] (an optional package)

from jaxspec.bench.peers.completion import CACHES, LOOKUP, LOOKUP_KEY, body, token_ids
from jaxspec.bench.peers.worker import Loaded, Request

_KINDS = xllamacpp.common_speculative_type
_MODES = {
    "plain": _KINDS.COMMON_SPECULATIVE_TYPE_NONE,
    "lookup": _KINDS.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "draft": _KINDS.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
}


class LlamaCpp:
    """Runs a server for each mode, inside this process."""

    def __init__(self, loaded: Loaded):
        """Loads the models into a server for each mode."""
        modes = [mode for mode in _MODES if mode != "draft" or loaded.draft is not None]
        self._servers = {mode: xllamacpp.Server(_parameters(mode, loaded)) for mode in modes}
        self.modes = tuple(modes)

    def answer(self, mode: str, request: Request) -> list[int]:
        # It replies as OpenAI's does, and lists the tokens' ids beside that alone.
        reply = self._servers[mode].handle_completions(body(request) | {"verbose": True})
        return token_ids(reply.get("__verbose", reply))


def _parameters(mode: str, loaded: Loaded) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = loaded.model
    parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = loaded.context, 1, 0
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0
    cache = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{CACHES[loaded.dtype]}")
    speculative = parameters.speculative
    for part in (parameters, speculative.draft):
        part.cache_type_k = part.cache_type_v = cache
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = loaded.threads
    speculative.types = [_MODES[mode]]
    if mode == "lookup":
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = LOOKUP_KEY, LOOKUP
    if mode == "draft":
        speculative.draft.mparams.path = loaded.draft
    return parameters
