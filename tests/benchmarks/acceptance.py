"""Measures how many tokens a round each verifier emits, with one draft model, at temperature 1."""

import dataclasses
import json
import pathlib

import jax
import numpy as np

import jaxspec
from jaxspec.checkpoints.load import load
from jaxspec.core.tree import Tree
from jaxspec.drafters.base import Drafter
from jaxspec.drafters.children import MostLikely, TopAndSampled, WithoutReplacement
from jaxspec.drafters.model import ModelDrafter
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.verifiers.base import Verifier
from jaxspec.verifiers.block import BlockVerifier
from jaxspec.verifiers.coupled import CoupledVerifier
from jaxspec.verifiers.k_seq import KSequence
from jaxspec.verifiers.multi_draft import MultiDraftVerifier
from jaxspec.verifiers.rejection import TokenVerifier
from jaxspec.verifiers.traversal import TraversalVerifier
from jaxspec.verifiers.tree import TreeVerifier
from jaxspec.verifiers.univer import UniVerVerifier
from tests.benchmarks.workload import chat_prompts, disturbed, show, show_machine

ROUNDS, BATCH, K = 12, 16, 4
LENGTHS = (1, 2, 4)
NOISE = 0.08


@dataclasses.dataclass(frozen=True)
class Case:
    """A verifier, and the drafter for it at a given k."""

    verifier: Verifier
    num_drafts: int = 1
    distinct: bool = True

    def drafter(self, model, k: int) -> Drafter:
        """Returns a drafter of chains of `k` tokens."""
        return ModelDrafter(model, k=k, num_drafts=self.num_drafts, distinct=self.distinct)


CASES = {
    "token": Case(TokenVerifier()),
    "block": Case(BlockVerifier()),
    "coupled": Case(CoupledVerifier()),
    "2 drafts, K-SEQ": Case(MultiDraftVerifier(KSequence()), 2, distinct=False),
    "2 drafts, without replacement": Case(MultiDraftVerifier(), 2),
    "4 drafts, K-SEQ": Case(MultiDraftVerifier(KSequence()), 4, distinct=False),
    "4 drafts, without replacement": Case(MultiDraftVerifier(), 4),
    "4 drafts, traversal": Case(TraversalVerifier(), 4),
}
LONG, BINARY = Tree.of_size(16), Tree.balanced((2, 2, 2))
TREES = {
    "tree of 16, top children": (LONG, MostLikely(), TreeVerifier()),
    "tree of 16, without replacement": (LONG, WithoutReplacement(), MultiDraftVerifier()),
    "tree of 16, traversal": (LONG, WithoutReplacement(), TraversalVerifier()),
    "tree of 16, UniVer": (LONG, TopAndSampled(), UniVerVerifier()),
    "binary tree of 14, without replacement": (BINARY, WithoutReplacement(), MultiDraftVerifier()),
    "binary tree of 14, traversal": (BINARY, WithoutReplacement(), TraversalVerifier()),
    "binary tree of 14, UniVer": (BINARY, TopAndSampled(), UniVerVerifier()),
}


def run(model_name: str, repeats: int) -> None:
    """Prints the mean acceptance length of each verifier at k = 4, with standard errors."""
    show_machine()
    _show_setting(repeats)
    bench = _Bench.of(model_name, repeats)
    for name, case in CASES.items():
        _show(f"{name}, k={K}", *bench.measure(lambda model, case=case: case.drafter(model, K), case.verifier))
    for name, (tree, draw, verifier) in TREES.items():
        make = lambda model, tree=tree, draw=draw: TreeDrafter(model, tree, draw)  # noqa: E731
        _show(name, *bench.measure(make, verifier))


def run_over_k(model_name: str, repeats: int) -> None:
    """Prints the same for several k; draws `acceptance.svg` here. Goes on from an `acceptance.json` here."""
    show_machine()
    _show_setting(repeats)
    path = pathlib.Path("acceptance.json")
    setting = {"model": model_name, "batches": repeats, "rows": BATCH, "rounds": ROUNDS, "noise": NOISE}
    known = json.loads(path.read_text()) if path.exists() else {}
    found = known["found"] if known.get("setting") == setting else {}
    bench = _Bench.of(model_name, repeats)
    for k in LENGTHS:
        for name, case in CASES.items():
            row = found.setdefault(name, {})
            if str(k) not in row:
                row[str(k)] = bench.measure(lambda model, case=case, k=k: case.drafter(model, k), case.verifier)
                path.write_text(json.dumps({"setting": setting, "found": found}, indent=1))
            _show(f"{name}, k={k}", *row[str(k)])
    plot(found, pathlib.Path("acceptance.svg"))


def plot(found: dict[str, dict[str, tuple[float, float]]], path: pathlib.Path) -> None:
    """Draws mean acceptance length against k with standard errors."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    # Names stand at the lines' ends, from above, where no legend has to be matched by color.
    last = max(LENGTHS)
    ends = sorted(found, key=lambda name: found[name][str(last)][0])
    places = np.array([found[name][str(last)][0] for name in ends])
    for index in range(1, len(places)):
        places[index] = max(places[index], places[index - 1] + 0.05 * (places[-1] - 1))
    for name, place in zip(ends, places, strict=True):
        means, errors = zip(*(found[name][str(k)] for k in LENGTHS), strict=True)
        style = "--" if name == "coupled" else "-"
        line, *_ = axes.errorbar(LENGTHS, means, errors, fmt=f"o{style}", capsize=2, markersize=3.5, linewidth=1.3)
        axes.annotate(name, (last, means[-1]), (last * 1.03, place), color=line.get_color(), va="center", fontsize=8.5)
    axes.set(xlabel="k, drafted tokens along a path", ylabel="mean acceptance length, tokens a round")
    axes.set_xticks(LENGTHS)
    axes.set_xlim(right=last * 1.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.savefig(path)
    pyplot.close(figure)


@dataclasses.dataclass(frozen=True)
class _Bench:
    """The default model, a noisy copy of it as the draft, and the prompts in `repeats` batches."""

    target: jaxspec.LanguageModel
    draft: jaxspec.LanguageModel
    repeats: int

    @classmethod
    def of(cls, model_name: str, repeats: int) -> "_Bench":
        target = load(model_name)
        return cls(target, disturbed(target, NOISE), repeats)

    def measure(self, make_drafter, verifier: Verifier) -> tuple[float, float]:
        """Returns the mean acceptance length over all rows, and its standard error."""
        # Programs of earlier cases are done with, and each takes hundreds of megabytes.
        jax.clear_caches()
        drafter = make_drafter(self.draft)
        emitted = []
        for batch in range(self.repeats):
            tokens, lengths = chat_prompts(self.target, batch * BATCH, BATCH)
            stats = _rounds(self.target, drafter, verifier, tokens, lengths, jax.random.key(batch))
            emitted += np.asarray(stats.emitted).tolist()
        lengths = np.array(emitted) / ROUNDS
        return float(np.mean(lengths)), float(np.std(lengths, ddof=1) / np.sqrt(len(lengths)))


@jax.jit
def _rounds(target, drafter, verifier, tokens, lengths, key):
    """Counts `ROUNDS` rounds in each row: rounds and not tokens, so that none is cut short."""
    state = jaxspec.init(
        target,
        drafter,
        tokens,
        prompt_length=lengths,
        key=key,
        sampling=jaxspec.Sampling(1.0),
        max_new_tokens=ROUNDS * (max(LENGTHS) + 1),
        capacity=tokens.shape[1] + ROUNDS * (max(LENGTHS) + 1),
    )
    one = lambda _, state: jaxspec.step(target, drafter, verifier, state)[0]  # noqa: E731
    return jax.lax.fori_loop(0, ROUNDS, one, state).stats


def _show_setting(repeats: int) -> None:
    show("draft", f"the model itself with noise of {NOISE} standard deviations on its weights")
    show("texts", f"{repeats * BATCH} chat prompts, {ROUNDS} rounds each, temperature 1")


def _show(name: str, mean: float, error: float) -> None:
    show(name, f"{mean:.3f} +- {error:.3f} tokens a round")
