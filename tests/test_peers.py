"""Cases from other projects' test suites, restated as inputs and outputs, with the source of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.synthetic import SyntheticVerifier
from jaxspec.core.random import RoundKeys
from jaxspec.core.state import Proposal
from jaxspec.verifiers.tree import TreeVerifier
from tests._fixtures import tiny


def verify(verifier, drafts, target, parents=None, depth=0):
    """Verifies greedily, rows of any number of drafts; returns what each emits, and the verdict."""
    width = max(map(len, drafts))
    pad = lambda rows, to: jnp.asarray([[*row, *[0] * (to - len(row))] for row in rows], jnp.int32)
    valid = jnp.asarray([[i < len(row) for i in range(width)] for row in drafts])
    proposal = Proposal(pad(drafts, width), valid, None, parents, depth)
    rng = RoundKeys(jax.random.split(jax.random.key(0), len(drafts)), jnp.full(len(drafts), 3, jnp.int32))
    verdict = verifier.verify_greedy(rng, proposal, pad(target, width + 1))
    pairs = zip(drafts, verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True)
    return [[*row[:accepted], token] for row, accepted, token in pairs], verdict


def test_greedy_chains():
    """vLLM, tests/v1/sample/test_rejection_sampler.py: drafts, the target's tokens, and what is emitted."""
    cases = [
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),  # all, and the bonus token
        ([1, 2, 3], [1, 5, 3, 4], [1, 5]),  # matches after a rejected draft are not accepted
        ([1, 2], [1, 2, 5], [1, 2, 5]),  # rows of different lengths
        ([3], [3, 4], [3, 4]),
        ([], [5], [5]),
        ([1, 2, 3], [1, 2, 7, 6], [1, 2, 7]),
        ([4, 5, 6], [4, 8, 6, 9], [4, 8]),
        ([1], [2, 3], [2]),
        ([1, 2], [1, 5, 6], [1, 5]),
        ([3, 4], [3, 4, 7], [3, 4, 7]),
    ]
    drafts, target, emitted = map(list, zip(*cases, strict=True))
    assert verify(jaxspec.TokenVerifier(), drafts, target)[0] == emitted


@pytest.mark.slow
def test_greedy_trees():
    """SGLang, sgl-kernel/tests/speculative/test_eagle_utils.py: two trees, and the paths that are accepted.

    Their node 0 is the committed token. In the second row the better child of the text is the later node.
    """
    parents = jnp.asarray([[-1, 0, -1, 2, 3], [-1, 0, 1, -1, 3]], jnp.int32)
    drafts, nowhere = [[1, 2, 3, 4, 5], [8, 9, 10, 11, 12]], 18
    target = [[3, nowhere, nowhere, 4, 5, nowhere], [11, nowhere, nowhere, nowhere, 12, nowhere]]
    _, verdict = verify(TreeVerifier(), drafts, target, parents, 3)
    assert verdict.accepted.tolist() == [3, 2]
    assert verdict.path[0].tolist() == [2, 3, 4] and verdict.path[1, :2].tolist() == [3, 4]
    assert verdict.next_token.tolist() == [nowhere, nowhere]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "emitted"), [(1.0, [[1, 2, 50], [3, 40]]), (0.0, [[10], [30]])])
def test_synthetic_acceptance(rate, emitted):
    """vLLM, the same file: rates of 1 and of 0, of drafts that the target would never accept."""
    assert verify(SyntheticVerifier((rate, rate)), [[1, 2], [3]], [[10, 20, 50], [30, 40]])[0] == emitted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "min_ngram", "max_ngram", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3, 5, 6], 2, 2, None),
        ([1, 2, 3, 4, 1, 2, 3], 2, 2, [4, 1, 2]),
        ([1, 2, 3, 4, 1, 2, 3], 1, 1, [4, 1, 2]),
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 2, 2, [4, 1, 2]),
        ([1, 2, 3, 4, 5], 2, 2, None),
        ([1, 2, 3, 4, 1, 2, 3], 4, 4, None),
        ([1, 2, 3, 4, 1, 2, 3], 3, 4, [4, 1, 2]),
        ([2, 3, 4, 5, 1, 2, 3, 4, 1, 2, 3, 4], 3, 4, [1, 2, 3]),  # four tokens match, and not three: 5, 1
        ([3, 4, 5, 2, 3, 4, 1, 2, 3, 4], 2, 4, [1, 2, 3]),  # three tokens match, and not two: 5, 2
        # Of equal matches the latest is taken here, the first there, which drafts 6, 2 and 100, 1.
        ([1, 3, 6, 2, 3, 4, 1, 2, 3], 1, 1, [4, 1, 2]),
        ([1, 2, 3, 100, 1, 2, 3, 200, 1, 2, 3, 300, 1, 2, 3], 3, 3, [300, 1, 2]),
    ],
)
def test_n_grams(text, min_ngram, max_ngram, expected):
    """vLLM, tests/v1/spec_decode/test_ngram.py: texts, and what is drafted after them."""
    drafter = jaxspec.NGramDrafter(k=3, min_ngram=min_ngram, max_ngram=max_ngram)
    tokens = jnp.asarray([text + [0] * (16 - len(text))], jnp.int32)
    guess = drafter.guess(tokens, jnp.asarray([len(text)], jnp.int32))
    assert (guess.tokens[0].tolist() if guess.count[0] else None) == expected


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3, 10])
def test_a_text_that_fills_the_context(k):
    """vLLM, tests/v1/spec_decode/test_max_len.py: repeated tokens up to the last position, for any `k`.

    Tokens are those of plain decoding, and the last round's drafts beyond it are cut.
    """
    target, new = tiny.transformer(0), 21
    prompt = jnp.ones((1, target.context_length - new), jnp.int32)
    drafter = jaxspec.NGramDrafter(k=k, max_ngram=5, min_ngram=3)
    found, plain = (jaxspec.generate(target, each, prompt, max_new_tokens=new) for each in (drafter, None))
    assert found.length.tolist() == [new]
    assert found.stop_reason.tolist() == [jaxspec.StopReason.MAX_NEW_TOKENS]
    np.testing.assert_array_equal(found.tokens, plain.tokens)


def test_a_text_that_does_not_fit_the_context_says_what_does():
    target = tiny.transformer(0)
    prompt = jnp.ones((1, target.context_length - 21), jnp.int32)
    with pytest.raises(ValueError, match="512"):
        jaxspec.generate(target, jaxspec.NGramDrafter(k=10), prompt, max_new_tokens=22)
