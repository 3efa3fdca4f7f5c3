"""Runs the peers, each in its process: Hugging Face transformers, and llama.cpp by xllamacpp or its own server.

Each decodes plainly, with lookup in the text, and with a draft model if there is one. Their packages are only imported
when an engine is made.
"""

import atexit
import contextlib
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from jaxspec.bench.peers.worker import Loaded, Request

LOOKUP = 10  # tokens; Spec-Bench's number, as there is no common default
LOOKUP_KEY = 2  # tokens that must match
CACHES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_PROGRAM = "llama-server"
_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05


class Transformers:
    """Runs `generate` of the Hugging Face model in a folder, on the CPU."""

    def __init__(self, loaded: Loaded):
        """Loads the models."""
        import torch  # pyright: ignore[reportMissingImports] (an optional package)
        from transformers import AutoModelForCausalLM

        self._torch = torch
        torch.set_num_threads(loaded.threads)
        dtype = getattr(torch, loaded.dtype)
        load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()  # noqa: E731
        self._model: Any = load(loaded.model)  # transformers' annotations lack its own generate
        self._ways = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": LOOKUP}}
        if loaded.draft is not None:
            self._ways["draft"] = {"assistant_model": load(loaded.draft)}
        self.modes = tuple(self._ways)

    def answer(self, mode: str, request: Request) -> list[int]:
        torch = self._torch
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


class LlamaCpp:
    """Runs llama.cpp through xllamacpp, with a server for each mode inside this process."""

    def __init__(self, loaded: Loaded):
        """Loads the models into a server for each mode."""
        import xllamacpp  # pyright: ignore[reportMissingImports] (an optional package)

        modes = ["plain", "lookup", *(["draft"] if loaded.draft is not None else [])]
        self._servers = {mode: xllamacpp.Server(_parameters(mode, loaded)) for mode in modes}
        self.modes = tuple(modes)

    def answer(self, mode: str, request: Request) -> list[int]:
        # It replies in OpenAI's format, and lists the token ids only in an additional field.
        reply = self._servers[mode].handle_completions(body(request) | {"verbose": True})
        return token_ids(reply.get("__verbose", reply))


def _parameters(mode: str, loaded: Loaded) -> Any:
    import xllamacpp  # pyright: ignore[reportMissingImports] (an optional package)

    kinds = xllamacpp.common_speculative_type
    modes = {
        "plain": kinds.COMMON_SPECULATIVE_TYPE_NONE,
        "lookup": kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
        "draft": kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    }
    parameters = xllamacpp.CommonParams()
    parameters.model.path = loaded.model
    parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = loaded.context, 1, 0
    parameters.cache_prompt, parameters.cache_ram_mib = False, 0
    cache = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{CACHES[loaded.dtype]}")
    speculative = parameters.speculative
    for part in (parameters, speculative.draft):
        part.cache_type_k = part.cache_type_v = cache
        part.cpuparams.n_threads = part.cpuparams_batch.n_threads = loaded.threads
    speculative.types = [modes[mode]]
    if mode == "lookup":
        speculative.ngram_simple.size_n, speculative.ngram_simple.size_m = LOOKUP_KEY, LOOKUP
    if mode == "draft":
        speculative.draft.mparams.path = loaded.draft
    return parameters


class LlamaServer:
    """Runs the user's build of llama.cpp's server, in processes that answer HTTP requests and end with this one."""

    def __init__(self, loaded: Loaded):
        """Starts a server for each mode, and waits until all have loaded the models."""
        self._servers = {"plain": _Server(loaded, "none"), "lookup": _Server(loaded, "ngram-simple", *_lookup())}
        if loaded.draft is not None:
            self._servers["draft"] = _Server(loaded, "draft-simple", *_draft(loaded, loaded.draft))
        self.modes = tuple(self._servers)
        for server in self._servers.values():
            server.wait()

    def answer(self, mode: str, request: Request) -> list[int]:
        return token_ids(self._servers[mode].post("/completion", body(request)))


class _Server:
    def __init__(self, loaded: Loaded, speculation: str, *further: str):
        with socket.socket() as free:
            free.bind((_HOST, 0))
            self._port = free.getsockname()[1]
        threads, cache = str(loaded.threads), CACHES[loaded.dtype].lower()
        command = [_PROGRAM, "--host", _HOST, "--port", str(self._port), "--model", loaded.model, "--offline"]
        command += ["--ctx-size", str(loaded.context), "--parallel", "1", "--n-gpu-layers", "0", "--cache-ram", "0"]
        command += ["--threads", threads, "--threads-batch", threads, "--cache-type-k", cache, "--cache-type-v", cache]
        self._process = subprocess.Popen([*command, "--spec-type", speculation, *further])
        atexit.register(self._process.kill)

    def wait(self) -> None:
        """Waits until the server is ready.

        Raises:
          RuntimeError: if the server ended instead, after printing its own messages.
        """
        while self._process.poll() is None:
            try:
                if "error" not in self._reply("GET", "/health"):
                    return
            except OSError:
                pass  # it is not listening yet
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{_PROGRAM} ended with {self._process.returncode} and did not load the model")

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Posts JSON to the server, and returns its reply."""
        return self._reply("POST", path, json.dumps(content))

    def _reply(self, method: str, path: str, content: str | None = None) -> dict[str, Any]:
        # One connection per request: the server closes those that are idle for some seconds.
        with contextlib.closing(http.client.HTTPConnection(_HOST, self._port)) as connection:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            return json.loads(connection.getresponse().read())


def _lookup() -> list[str]:
    return ["--spec-ngram-simple-size-n", str(LOOKUP_KEY), "--spec-ngram-simple-size-m", str(LOOKUP)]


def _draft(loaded: Loaded, draft: str) -> list[str]:
    threads, cache = str(loaded.threads), CACHES[loaded.dtype].lower()
    command = ["--spec-draft-model", draft, "--spec-draft-type-k", cache, "--spec-draft-type-v", cache]
    return [*command, "--spec-draft-threads", threads, "--spec-draft-threads-batch", threads]


def body(request: Request) -> dict[str, Any]:
    """Returns the request as JSON; it asks for the ids of new tokens, which their text may not determine."""
    return {
        "prompt": request.prompt,
        "n_predict": request.max_new_tokens,
        "temperature": request.temperature,
        "samplers": ["temperature"],
        "seed": request.seed,
        "ignore_eos": not request.stop,
        "cache_prompt": False,  # so that a repeated prompt costs as much
        "return_tokens": True,
    }


def token_ids(reply: Mapping[str, Any]) -> list[int]:
    """Returns the ids of the new tokens.

    Raises:
      RuntimeError: if llama.cpp did not answer, or the number of ids is not the reported number of tokens.
    """
    if "tokens_predicted" not in reply:
        raise RuntimeError(f"llama.cpp did not answer: {reply}")
    ids = [int(index) for index in reply["tokens"]]
    if len(ids) != reply["tokens_predicted"]:
        raise RuntimeError(f"llama.cpp made {reply['tokens_predicted']} tokens and gave {len(ids)}")
    return ids
