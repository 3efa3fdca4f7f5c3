"""Times each verifier alone, as a share of a whole round."""

import jax
import jax.numpy as jnp

import jaxspec
from jaxspec.bench.timing import interleave
from jaxspec.checkpoints.load import load
from jaxspec.core.compiler import traced_for
from jaxspec.core.tree import Tree
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.verifiers.tree import TreeVerifier
from tests.benchmarks.acceptance import CASES, K
from tests.benchmarks.workload import chat_prompt, first_layers, show, show_machine, show_ratio

LAYERS, ROUNDS = 6, 8


def run(model_name: str, repeats: int) -> None:
    """Prints the time of `verify` over that of a round with a draft of the model's first layers."""
    show_machine()
    target = load(model_name)
    draft = first_layers(target, LAYERS)
    models = {name: (case.drafter(draft, K), case.verifier) for name, case in CASES.items()}
    models["tree of 16, top children"] = (TreeDrafter(draft, Tree.of_size(16)), TreeVerifier())
    show("draft, batch, temperature", f"first {LAYERS} layers, 1, 1.0")
    for name, (drafter, verifier) in models.items():
        samples = interleave(_cases(target, drafter, verifier), repeats=repeats)
        show(f"{name}: round, verifier, ms", ", ".join(f"{samples.median(x) / ROUNDS * 1e3:.2f}" for x in _NAMES))
        show_ratio(f"{name}: share of a round", samples.ratio("verifier", "round"))


_NAMES = ("round", "verifier")


def _cases(target, drafter, verifier):
    options = {"sampling": jaxspec.Sampling(1.0), "key": jax.random.key(0)}
    state = jaxspec.init(target, drafter, chat_prompt(target), max_new_tokens=ROUNDS * 8, **options)
    step = jaxspec.jit_step()
    proposal, log_probs, rng = _inputs(target, drafter, verifier, state)

    @jax.jit
    def verify(verifier, rng, proposal, log_probs):
        with traced_for(target):
            return verifier.verify(rng, proposal, log_probs)

    def rounds():
        ours = state
        for _ in range(ROUNDS):
            ours, _ = step(target, drafter, verifier, ours)
        return ours

    return {"round": rounds, "verifier": lambda: [verify(verifier, rng, proposal, log_probs) for _ in range(ROUNDS)]}


@jax.jit
def _inputs(target, drafter, verifier, state):
    """Returns the inputs of `verify` in the first round; the distribution at a tree's root serves all its nodes."""
    context = state.context.of(target)
    rng = verifier.rng(state.keys, state.length)
    if not drafter.deterministic:
        rng = rng.shared(drafter.max_drafts + 1, target.vocab_size)
    proposal, _ = drafter.propose(rng, state.drafter_state, context)
    last = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
    logits = target(last, state.cache).logits
    rows = proposal.tokens.shape[1] + 1
    log_probs = state.context.sampling.log_probs(jnp.broadcast_to(logits, (1, rows, target.vocab_size)))
    return proposal, log_probs, rng
