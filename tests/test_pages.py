"""The Python on the site's pages runs as written; the classes that a page shows authors keep their contracts."""

import pathlib
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxspec
from jaxspec.testing.contracts.verifier import DISTRIBUTION
from tests._fixtures import examples
from tests._fixtures.contract_tests import VARIANT_TESTS

DOCS = pathlib.Path(__file__).parents[1] / "docs"
# Several processes: `tests/sharding/test_hosts.py`, `tests/serving/test_app.py` and `test_ray_cluster.py` run them.
NOT_RUN = {"guides/hosts.md", "guides/many-machines.md", "guides/serving.md"}
CLASSES = {"guides/your-drafter.md", "guides/your-verifier.md"}  # run below
SLOW = {
    "guides/drafters.md",
    "guides/answers.md",
    "guides/checkpoints.md",
    "guides/grammars.md",
    "guides/head-or-engine.md",
    "guides/meshes.md",
    "guides/controls.md",
    "guides/cpu.md",
    "guides/lossless.md",
    "guides/many-requests.md",
    "guides/transforms.md",
    "guides/your-model.md",
    "getting-started.md",
}


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)


def run(page, names):
    """Runs the blocks one after another, as a reader does; returns the names that they leave."""
    left = dict(names)
    for block in blocks(page):
        exec(compile(block, page, "exec"), left)
    return left


PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
WITH_CODE = [page for page in PAGES if blocks(page) and page not in NOT_RUN | CLASSES]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_sentences_end(page):
    text = (DOCS / page).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    absent = [link for link in links if link and not ((DOCS / page).parent / link).exists()]
    assert not absent and text.rstrip()[-1] in ".:|`)>"


# Figures that a guide may state: measurements are on benchmark pages.
FEW_NUMBERS = {"guides/choose.md": 15, "guides/lossless.md": 20}


def readable(page):
    """A page as it is read: without blocks of code and addresses of links, and with a word for each piece of code."""
    text = re.sub(r"^ *```.*?^ *```", "", (DOCS / page).read_text(), flags=re.M | re.S)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", text))
    return re.sub(r"<[^>]*>|[*]{2}", "", text)


def cells(page):
    rows = [line.strip().strip("|") for line in readable(page).splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in row.split("|")]


def sentences(page):
    lines = [line for line in readable(page).splitlines() if not re.match(r"[|#]", line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*[*] )", "\n".join(lines))
    return [" ".join(each.split()) for text in paragraphs for each in re.split(r"(?<=[.!?:;])\s+", text)]


@pytest.mark.parametrize("page", FEW_NUMBERS)
def test_guides_state_few_figures(page):
    assert len(re.findall(r"(?<![\w.])\d[\d,.]*", readable(page))) <= FEW_NUMBERS[page]


@pytest.mark.parametrize("page", ["../README.md", *(page for page in PAGES if not page.startswith("developer/"))])
def test_cells_and_sentences_are_short(page):
    long = [cell for cell in cells(page) if len(cell.split()) > 15]
    long += [sentence for sentence in sentences(page) if len(sentence.split()) >= 25]
    assert not long


def test_commands_that_need_a_checkout_say_so():
    """A wheel has no tests, and no recipes of the heads that ship."""
    texts = {page: (DOCS / page).read_text() for page in PAGES if not page.startswith("developer/")}
    need = [page for page, text in texts.items() if re.search(r"^python (-m (pytest )?tests|models/)", text, re.M)]
    assert len(need) > 8 and all("checkout" in texts[page] for page in need)


def test_titles_differ():
    """Titles of pages and notebooks; `docs/build.py` checks those of the whole site."""
    root = DOCS.parent
    titles = [
        re.search(r"^# (.+)", path.read_text(), re.M)[1]
        for path in (*DOCS.rglob("*.md"), root / "CHANGELOG.md", root / "CONTRIBUTING.md")
    ]
    titles += [re.search(r"^# # (.+)", path.read_text(), re.M)[1] for path in DOCS.glob("notebooks/*.py")]
    menu = re.findall(r'\{ "(.+?)" = "', (DOCS / "zensical.toml").read_text())  # the site's own titles
    for names in (titles, menu):
        assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


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


@pytest.mark.slow
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
    monkeypatch.setattr("jaxspec.text.decoder.load", load)
    # The heads that ship are for the model that the page names.
    head = lambda _, target: jaxspec.heads.dflash.init(target, jax.random.key(0), capture=(0,), mlp_width=16)  # noqa: E731
    monkeypatch.setattr(jaxspec, "load_head", head)
    monkeypatch.setattr("jaxspec.text.decoder.load_drafter", lambda *_, **options: jaxspec.NGramDrafter(k=2))
    names = examples.names(tmp_path)
    names |= {"module": Uniform(), "my_forward": lambda params, tokens: params[tokens], "params": jnp.eye(32_000, 8)}
    call = lambda params, tokens, cache, fed: (params[tokens] @ params.T, cache)
    names |= {"call": call, "init_cache": lambda batch, capacity: {"held": jnp.zeros((batch, capacity))}}
    names |= {"prompts": names["prompt"]} | dict.fromkeys(("first", "second", "third", "fourth"), draft)
    run(page, names | {"__name__": __name__})
