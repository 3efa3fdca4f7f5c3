"""Times plain decoding against `transformers` on the same weights, and against the memory bandwidth."""

import importlib.util

import jaxspec
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints import zoo
from jaxspec.checkpoints.load import load
from jaxspec.draft_length.costs import read_bytes
from jaxspec.nn.language_model import LanguageModel
from tests.benchmarks.workload import PROBE_BYTES, bandwidth_probe, chat_prompt, show, show_machine, show_ratio

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


def show_bandwidth(model: LanguageModel, rate: float, bandwidth: float) -> None:
    """Prints what share of the bandwidth limit a decoding rate reaches."""
    show("read bandwidth of a vector-matrix product, GB/s", f"{bandwidth / 1e9:.1f}")
    show("weights read a token, MB", f"{read_bytes(model) / 1e6:.0f}")
    show("share of the bandwidth limit", f"{rate * read_bytes(model) / bandwidth:.0%}")


def transformers_case(model_name: str, prompt):
    """Returns a case of greedy `transformers` generation in float32 on the same weights, from the zoo's GGUF file."""
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
