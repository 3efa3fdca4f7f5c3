"""The Python of the site's pages runs as it stands there; what a page tells authors to write keeps its contract."""

import pathlib
import re

import jax.numpy as jnp
import pytest
from flax import nnx

import jaxspec
from tests._fixtures import examples
from tests.contracts import VARIANT_TESTS
from tests.contracts.verifier import DISTRIBUTION

DOCS = pathlib.Path(__file__).parents[1] / "docs"
# Two processes, which `tests/sharding/test_hosts.py` runs.
NOT_RUN = {"guides/hosts.md"}
CLASSES = {"guides/your-drafter.md", "guides/your-verifier.md"}  # run below
SLOW = {"guides/meshes.md", "guides/controls.md", "guides/lossless.md", "guides/transforms.md", "getting-started.md"}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def run(page, names):
    """Runs the blocks, each with the same names; returns those that the last one leaves."""
    for block in blocks(page):
        found = dict(names)
        exec(compile(block, page, "exec"), found)
    return found


PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
WITH_CODE = [page for page in PAGES if blocks(page) and page not in NOT_RUN | CLASSES]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_sentences_end(page):
    text = (DOCS / page).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    absent = [link for link in links if link and not ((DOCS / page).parent / link).exists()]
    assert not absent and text.rstrip()[-1] in ".:|`)>"


class Uniform(nnx.Module):
    """Knows nothing."""

    def __call__(self, tokens):
        return jnp.zeros((*tokens.shape, 32_000))


DRAFTER = run("guides/your-drafter.md", {"__name__": __name__})
VERIFIER = run("guides/your-verifier.md", {"__name__": __name__})


class TestCountingDrafter(DRAFTER["TestCountingDrafter"]):
    quick_tests = VARIANT_TESTS


class TestSampleAndMatch(VERIFIER["TestSampleAndMatch"]):
    quick_tests = (
        *DISTRIBUTION,
        "test_never_emits_what_the_target_excludes",
        "test_greedy_accepts_the_longest_matching_prefix",
    )


def test_the_drafter_of_the_page_drafts():
    """In a text that counts its drafts are accepted; that it drafts nowhere else is in its contract."""
    counting = jnp.eye(8)[(jnp.arange(8) + 1) % 8] * 9.0
    target = jaxspec.from_function(lambda table, tokens: table[tokens], counting, vocab_size=8)
    found = jaxspec.generate(target, DRAFTER["CountingDrafter"](), jnp.array([[3], [0]]), max_new_tokens=6)
    assert found.tokens.tolist() == [[4, 5, 6, 7, 0, 1], [1, 2, 3, 4, 5, 6]]
    assert found.stats.accepted.sum() > 0


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else []) for page in WITH_CODE]
)
def test_a_page_s_python_runs(page, tmp_path, monkeypatch):
    target, draft = examples.models()

    def load(name, mesh=None, weights=None):
        assert name == "smollm2-135m-instruct" and weights in (None, "dequantized")
        return target if mesh is None else jaxspec.shard(target, mesh)

    monkeypatch.setattr(jaxspec, "load", load)
    monkeypatch.setattr("jaxspec.text.given.load", load)
    # The head that ships is for the model that the page names.
    monkeypatch.setattr("jaxspec.text.given.load_drafter", lambda *_, **options: jaxspec.NGramDrafter(k=2))
    names = examples.names(tmp_path)
    names |= {"module": Uniform(), "my_forward": lambda params, tokens: params[tokens], "params": jnp.eye(32_000, 8)}
    call = lambda params, tokens, cache, fed: (params[tokens] @ params.T, cache)
    names |= {"call": call, "init_cache": lambda batch, capacity: {"held": jnp.zeros((batch, capacity))}}
    names |= {"prompts": names["prompt"]} | dict.fromkeys(("first", "second", "third", "fourth"), draft)
    run(page, names | {"__name__": __name__})
