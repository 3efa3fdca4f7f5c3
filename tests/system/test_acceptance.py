"""Expected acceptance of the default model's heads, against what `generate` accepts in rounds of the same texts."""

import jax
import numpy as np
import pytest

import jaxspec
from jaxspec.bench.acceptance import AcceptanceOptions, expected_acceptance
from jaxspec.bench.estimate import ratio
from jaxspec.verifiers.table import VERIFIERS
from tests._fixtures.chat_prompts import PROMPTS, encode
from tests.conftest import DEFAULT_MODEL

pytestmark = [pytest.mark.smollm2, pytest.mark.slow]

TEXTS, NEW_TOKENS, K = 16, 32, 4


@pytest.mark.parametrize(
    ("head", "rule"), [("eagle", "token"), ("eagle", "block"), ("medusa", "token"), ("dflash", "block")]
)
def test_a_shipped_head_is_accepted_as_often_as_expected(smollm2, head, rule, record_property):
    drafter = jaxspec.load_drafter(head, smollm2, target_name=DEFAULT_MODEL, k=K)
    tokens, lengths = (np.asarray(x) for x in encode(smollm2.tokenizer, PROMPTS[:TEXTS]))
    prompts, key = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)], jax.random.key(3)
    options = AcceptanceOptions(max_new_tokens=NEW_TOKENS, starts=rule, batch=TEXTS)
    found = expected_acceptance(smollm2, drafter, prompts, key=key, options=options)
    # The rounds that were measured are those of `generate`, which has the same keys.
    order = np.argsort(lengths, kind="stable")
    result = jaxspec.generate(
        smollm2,
        drafter,
        tokens[order],
        prompt_length=lengths[order],
        key=jax.random.split(key, TEXTS)[order],
        sampling=jaxspec.Sampling(),
        verifier=VERIFIERS[rule](),
        max_new_tokens=NEW_TOKENS,
        stop_tokens=smollm2.tokenizer.eos_token_ids,
    )
    rounds = np.bincount(found.measured.text, minlength=TEXTS)[order]
    same = rounds == np.asarray(result.stats.rounds)
    assert np.mean(same) >= 0.8  # a near-tie of rounding may part a text
    measured = found.measured.where(np.isin(found.measured.text, order[same]))
    expected = measured.block if rule == "block" else measured.reach * measured.accept
    for place in range(K):
        counted = measured.accepted > place
        difference = ratio(counted - expected[:, place], np.ones(len(counted)), measured.text)
        line = f"{np.mean(expected[:, place]):.3f} expected, {np.mean(counted):.3f} counted, +- {difference.error:.3f}"
        print(f"{head}, {rule}, draft {place + 1}: {line}, {len(counted)} rounds")
        record_property(f"draft {place + 1}", line)
        assert abs(difference.value) < 3 * difference.error
    # The end of a text cuts its last round; all others were accepted as they were measured.
    cut = np.asarray(result.stats.accepted)[same].sum()
    assert cut <= measured.accepted.sum() <= cut + K * np.sum(same)
