"""Runs llama.cpp by way of xllamacpp: plain, n-gram lookup, and a draft model."""

import xllamacpp  # pyright: ignore[reportMissingImports] (an optional package)

from jaxspec.bench.peers.worker import Loaded, Request

LOOKUP = 10
_KINDS = xllamacpp.common_speculative_type
_MODES = {
    "plain": _KINDS.COMMON_SPECULATIVE_TYPE_NONE,
    "lookup": _KINDS.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "draft": _KINDS.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
}
_CACHES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class LlamaCpp:
    """Runs a server for each mode, inside this process; the GGUF file's tokens have their numbers as texts."""

    def __init__(self, loaded: Loaded):
        """Loads the models into a server for each mode."""
        modes = [mode for mode in _MODES if mode != "draft" or loaded.draft is not None]
        self._servers = {mode: xllamacpp.Server(_parameters(mode, loaded)) for mode in modes}
        self.modes = tuple(modes)

    def answer(self, mode: str, request: Request) -> list[int]:
        reply = self._servers[mode].handle_completions(
            {
                "prompt": request.prompt,
                "n_predict": request.max_new_tokens,
                "temperature": request.temperature,
                "samplers": ["temperature"],
                "seed": request.seed,
                "ignore_eos": not request.stop,
                "cache_prompt": False,
            }
        )
        if "choices" not in reply:
            raise RuntimeError(f"llama.cpp did not answer: {reply}")
        ids = [int(number) for number in reply["choices"][0]["text"].split(",") if number]
        if len(ids) != reply["usage"]["completion_tokens"]:
            raise RuntimeError(f"llama.cpp made {reply['usage']['completion_tokens']} tokens and gave {len(ids)}")
        return ids


def _parameters(mode: str, loaded: Loaded) -> xllamacpp.CommonParams:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = loaded.model
    parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = loaded.context, 1, 0
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0  # a prompt that came before costs as much
    parameters.special = True  # the text of stop tokens too
    cache = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{_CACHES[loaded.dtype]}")
    speculative = parameters.speculative
    for part in (parameters, speculative.draft):
        part.cache_type_k = part.cache_type_v = cache
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = loaded.threads
    speculative.types = [_MODES[mode]]
    if mode == "lookup":
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = 2, LOOKUP
    if mode == "draft":
        speculative.draft.mparams.path = loaded.draft
    return parameters
