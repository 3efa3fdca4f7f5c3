"""Writes the table of families in docs/guides/checkpoints.md, from the code and from what the tests compare.

python -m tests._fixtures.family_table      # writes it
"""

import collections
import pathlib
import re

from jaxspec.families.table import FAMILIES, SHAPES
from tests._fixtures.reference_cases import CASES

PAGE = pathlib.Path(__file__).parents[2] / "docs/guides/checkpoints.md"
_MARK = re.compile(r"(?<=<!-- families -->\n).*?(?=<!-- end of families -->)", re.S)
NAMES = {
    "llama": "Llama 2 and 3, SmolLM2, TinyLlama",
    "mistral": "Mistral, Mistral Small 3",
    "qwen2": "Qwen 2 and 2.5",
    "qwen3": "Qwen 3",
    "gemma3_text": "Gemma 3",
    "gpt2": "GPT-2",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "granite": "Granite 3",
    "smollm3": "SmolLM3",
    "qwen3_moe": "Qwen 3 MoE",
    "mixtral": "Mixtral",
    "olmoe": "OLMoE",
    "gpt_oss": "gpt-oss",
}
# The numbers of parameters of published checkpoints.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "mistral-small-3.1-24b": 23_572_403_200,
    "olmo-2-7b": 7_298_617_344,
    "olmo-3-7b": 7_298_011_136,
    "granite-3.3-8b": 8_170_864_640,
    "smollm3-3b": 3_075_098_624,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


def table() -> str:
    """The table, one family a line."""
    cases = collections.Counter(kind for kind, _ in CASES.values())
    lines = ["| family | `model_type` | GGUF | logits | sizes |", "|---|---|---|---|---|"]
    for family in FAMILIES:
        kind = family.model_type
        sizes = ", ".join(name for name in PUBLISHED if SHAPES[name]["model_type"] == kind)
        layout = f"`{_ARCHITECTURES[kind]}`" if kind in _ARCHITECTURES else ""
        lines.append(f"| {NAMES[kind]} | `{kind}` | {layout} | {cases[kind]} | {sizes} |")
    return "\n".join(["", *lines, "", ""])


# Families that share the architecture of another one.
_ARCHITECTURES = {family.model_type: family.gguf.architecture for family in FAMILIES if family.gguf}
_ARCHITECTURES |= {"mistral": "llama", "olmo3": "olmo2"}


def on_page() -> str:
    """The table that the page has."""
    found = _MARK.search(PAGE.read_text("utf-8"))
    assert found is not None
    return found[0]


if __name__ == "__main__":
    PAGE.write_text(_MARK.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
