"""Plain decoding against `transformers` on the same weights, and against the memory bandwidth."""

import importlib.util

import jax
import jax.numpy as jnp

import jaxspec
from jaxspec.bench.timing import interleave, show, show_ratio
from jaxspec.bench.workload import chat_prompt, show_machine, weight_bytes
from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load
from jaxspec.nn.language_model import LanguageModel

NEW_TOKENS = 128


def run(model_name: str, repeats: int) -> None:
    """Prints tokens a second of both, their ratio turn by turn, and the share of the bandwidth."""
    show_machine()
    model = load(model_name, dtype="float32")
    prompt = chat_prompt(model)
    cases = {
        "jaxspec": lambda: jaxspec.generate(model, None, prompt, max_new_tokens=NEW_TOKENS),
        "bandwidth": bandwidth_probe(),
    }
    if importlib.util.find_spec("torch") is None:
        show("transformers", "not installed: pip install 'jaxspec-decode[bench]'")
    else:
        cases["transformers"] = transformers_case(model_name, prompt)
    samples = interleave(cases, repeats=repeats)
    rate = NEW_TOKENS / samples.median("jaxspec")
    show("jaxspec plain, float32, batch 1, tokens/s", f"{rate:.1f}")
    if "transformers" in cases:
        show("transformers plain, same weights, tokens/s", f"{NEW_TOKENS / samples.median('transformers'):.1f}")
        show_ratio("jaxspec / transformers, tokens/s", samples.ratio("transformers", "jaxspec"))
    show_bandwidth(model, rate, PROBE_BYTES / samples.median("bandwidth"))


PROBE_BYTES = 2**29


def bandwidth_probe(passes: int = 1):
    """A case that reads half a GiB, as a vector-matrix product: what decoding could reach.

    Where a call takes longer to begin than half a GiB to read, pass how often one call is to read it.
    """
    matrix = jnp.ones((2**17, 2**10), jnp.float32)
    vector = jnp.ones(2**10, jnp.float32)

    @jax.jit
    def product(matrix, vector):
        # Each pass needs all of the one before, or the compiler would leave it out.
        again = lambda _, vector: jnp.max((matrix @ vector).reshape(-1, 2**10), axis=0) * 2.0**-10  # noqa: E731
        return matrix @ jax.lax.fori_loop(0, passes - 1, again, vector)

    return lambda: product(matrix, vector)


def show_bandwidth(model: LanguageModel, rate: float, bandwidth: float) -> None:
    """Prints what share of the bandwidth limit a decoding rate reaches."""
    show("read bandwidth of a vector-matrix product, GB/s", f"{bandwidth / 1e9:.1f}")
    show("weights read a token, MB", f"{weight_bytes(model) / 1e6:.0f}")
    show("share of the bandwidth limit", f"{rate * weight_bytes(model) / bandwidth:.0%}")


def transformers_case(model_name: str, prompt):
    """Greedy `transformers` generation in float32 on the same weights, from the zoo's GGUF file."""
    import torch
    import transformers

    path = zoo.find(model_name).path
    other = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    ids = torch.tensor(prompt.tolist())

    def case():
        with torch.inference_mode():
            other.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
            )

    return case
