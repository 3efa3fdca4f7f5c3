"""Fixed calls of `generate` on tiny models: one for every drafter with every verifier that can check it."""

import functools
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.contrib.lantern import Neighborhood
from jaxspec.contrib.union import UnionDrafter
from jaxspec.core.tree import Tree
from jaxspec.drafters.children import TopAndSampled, WithoutReplacement, WithReplacement
from jaxspec.drafters.dynamic_tree import DynamicTreeDrafter
from jaxspec.drafters.tree import TreeDrafter
from jaxspec.heads.eagle.mtp import MtpLayer
from jaxspec.heads.eagle.network import FirstEagleLayer
from jaxspec.testing.history_models import history_model, nearby
from jaxspec.verifiers.relaxed import Lenience, RelaxedVerifier
from jaxspec.verifiers.typical import Typical
from tests._fixtures import dflash as blocks, medusa, tandem, tiny, token_maps
from tests._fixtures.eagle import eagle_head
from tests._fixtures.early_exit import random_exit

PROMPTS = np.random.default_rng(0).integers(0, tiny.VOCAB, size=(4, 7))
LENGTHS = np.array([7, 1, 4, 2])
NEW = 24
NETWORK, NUMBERS = tiny.transformer(3, layers=3), history_model(0, vocab=tiny.VOCAB, scale=2.0)
DRAFT, OTHER = nearby(NUMBERS, 0.5), nearby(NUMBERS, 0.8, seed=4)
SHARED = {0: 2, 1: 0, 3: 1, 5: 6, 6: 7, 7: 8, 8: 9, 9: 3}
PIECES = [[2], [0], [3, 4], [1], [4, 5], [6], [7], [8], [9], [3], [5, 5]]
SOME = [0, 2, 3, 5, 6, 8, 9, 10]
RING = jnp.asarray([[(i + 1) % tiny.VOCAB, (i - 1) % tiny.VOCAB] for i in range(tiny.VOCAB)], jnp.int32)
BRANCHES = Tree((-1, -1, 0, 0, 1, 2))
COSTS = (1.0, 1.1, 1.3)


def _numbers():
    """Drafters for the model that is arithmetic alone."""
    model, ngram = jaxspec.ModelDrafter(DRAFT, k=3), jaxspec.NGramDrafter(k=3, min_ngram=1)
    suffix = jaxspec.SuffixDrafter(k=3)
    return {
        "none": None,
        "model": model,
        "model, greedy": jaxspec.ModelDrafter(DRAFT, k=3, sampling=jaxspec.Greedy()),
        "model, entropy": jaxspec.ModelDrafter(DRAFT, k=jaxspec.draft_length.EntropyStop(4)),
        "model, confidence": jaxspec.ModelDrafter(DRAFT, k=jaxspec.draft_length.ConfidenceStop(4, 0.4)),
        "model, adaptive": jaxspec.ModelDrafter(DRAFT, k=jaxspec.Adaptive(COSTS, (0, 2, 4))),
        "models, several drafts": jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=3),
        "models, independent drafts": jaxspec.ModelDrafter(DRAFT, k=2, num_drafts=3, distinct=False),
        "ngram": ngram,
        "suffix": suffix,
        "hybrid": jaxspec.HybridDrafter(ngram, model),
        "hybrid, suffix": jaxspec.HybridDrafter(suffix, model),
        "cascade": jaxspec.contrib.CascadeDrafter(DRAFT, ngram, k=3),
        "cross vocabulary": jaxspec.CrossVocabularyDrafter(
            token_maps.nearby(NUMBERS, SHARED, 11), token_maps.made(PIECES, SHARED, [], 11), k=3
        ),
        "tree, likeliest": TreeDrafter(DRAFT, BRANCHES),
        "tree, without replacement": TreeDrafter(DRAFT, BRANCHES, draw=WithoutReplacement()),
        "tree, with replacement": TreeDrafter(DRAFT, Tree.chains(3, 2), draw=WithReplacement()),
        "tree, top and sampled": TreeDrafter(DRAFT, BRANCHES, draw=TopAndSampled()),
        "dynamic tree": DynamicTreeDrafter(DRAFT, top_k=3, depth=3, nodes=8),
        "union": UnionDrafter((model, jaxspec.ModelDrafter(OTHER, k=2))),
        "union, ngram": UnionDrafter((model, ngram)),
        "parallel": jaxspec.contrib.ParallelDrafter((DRAFT, OTHER), k=2),
        "parallel, replicas": jaxspec.contrib.ParallelDrafter(DRAFT, k=2, num_drafts=2),
    }


def _network():
    """Drafters that need a decoder."""
    eagle = lambda seed, **options: eagle_head(seed, target=NETWORK, **options)
    head, small = eagle(0), eagle(1, ids=SOME)
    mtp = functools.partial(MtpLayer, feedback="prenorm")
    flash = blocks.random_head(NETWORK, ids=SOME, layers=1, seed=4, markov_rank=3)
    tandems, conditioned = tandem.random_head(NETWORK, ids=SOME, seed=4), medusa.conditioned_head(NETWORK, ids=SOME)
    return {
        "model of another network": jaxspec.ModelDrafter(tiny.transformer(4, layers=1), k=3),
        "eagle": jaxspec.EagleDrafter(head, k=3),
        "eagle, small vocabulary": jaxspec.EagleDrafter(small, k=3),
        "eagle, first": jaxspec.EagleDrafter(eagle(2, layer=FirstEagleLayer, capture=(3,), normalized=True), k=3),
        "eagle, mtp": jaxspec.EagleDrafter(eagle(3, layer=mtp, capture=(3,), normalized=True), k=2),
        "eagle, tree": TreeDrafter(head, BRANCHES),
        "eagle, dynamic tree": DynamicTreeDrafter(small, top_k=3, depth=3, nodes=8),
        "eagle, ngram": jaxspec.HybridDrafter(jaxspec.NGramDrafter(k=3, min_ngram=1), jaxspec.EagleDrafter(head, k=3)),
        "dflash": jaxspec.DFlashDrafter(flash, k=3),
        "tandem": jaxspec.contrib.TandemDrafter(tandems, k=3),
        "tandem, dynamic tree": DynamicTreeDrafter(tandems, top_k=3, depth=3, nodes=8),
        "medusa": jaxspec.MedusaDrafter(conditioned),
        "medusa, paper": jaxspec.MedusaDrafter(medusa.paper_head(NETWORK, 2, blocks=2), k=2),
        "medusa, tree": jaxspec.MedusaDrafter(conditioned, topology=BRANCHES),
        "early exit": jaxspec.EarlyExitDrafter(2, k=3),
        "early exit, head": jaxspec.EarlyExitDrafter(2, k=2, head=random_exit(NETWORK, 2, ids=SOME)),
        "sparse cache": jaxspec.contrib.SparseCacheDrafter(sinks=2, window=3, k=3),
    }


VERIFIERS = {
    "default": None,
    "token": jaxspec.TokenVerifier(),
    "block": jaxspec.BlockVerifier(),
    "coupled": jaxspec.CoupledVerifier(),
    "multi-draft": jaxspec.verifiers.MultiDraftVerifier(),
    "k-seq": jaxspec.verifiers.MultiDraftVerifier(jaxspec.verifiers.KSequence()),
    "tree": jaxspec.TreeVerifier(),
    "traversal": jaxspec.verifiers.TraversalVerifier(),
    "univer": jaxspec.verifiers.UniVerVerifier(),
    "lenience": RelaxedVerifier(Lenience(0.5)),
    "neighborhood": RelaxedVerifier(Neighborhood(RING, 0.5)),
    "typical": RelaxedVerifier(Typical()),
}
POLICIES = {
    "greedy": jaxspec.Greedy(),
    "sampled": jaxspec.Sampling(temperature=jnp.asarray([0.8, 1.0, 0.0, 1.3], jnp.float32), top_p=0.95),
}


def cases():
    """Yields name, target, drafter, verifier, policy; those that a verifier refuses are left out."""
    for target, drafters in ((NUMBERS, _numbers()), (NETWORK, _network())):
        for of_drafter, drafter in drafters.items():
            for of_verifier, verifier in VERIFIERS.items():
                try:
                    if verifier is not None:
                        verifier.check(jaxspec.drafters.base.NoDrafter() if drafter is None else drafter)
                except (TypeError, ValueError):
                    continue
                for of_policy, policy in POLICIES.items():
                    if of_policy == "greedy" and of_verifier != "default":
                        continue
                    yield f"{of_drafter} | {of_verifier} | {of_policy}", target, drafter, verifier, policy


def run(target, drafter, verifier, policy):
    """Returns the tokens of each row, and a hash of every other bit of the result."""
    result = jaxspec.generate(
        target,
        drafter,
        jnp.asarray(PROMPTS, jnp.int32),
        prompt_length=jnp.asarray(LENGTHS),
        key=jax.random.key(7),
        sampling=policy,
        verifier=verifier,
        max_new_tokens=NEW,
        lossy=True,
    )
    tokens = np.asarray(result.tokens, np.int32)
    counted = [result.stats.accepted, result.stats.drafted, result.stats.rounds]
    bits = [tokens, *map(np.asarray, (result.log_probs, result.warped_log_probs, result.length, *counted))]
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in bits)).hexdigest()
    return {"tokens": tokens.tolist(), "accepted": np.asarray(result.stats.accepted).tolist(), "bits": digest}
