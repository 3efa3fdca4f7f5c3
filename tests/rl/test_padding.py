"""`get_per_token_logps`: where a prompt begins, if its padding and its beginning are one token."""

import functools

import numpy as np
import pytest

from jaxspec.rl import TunixRollout
from tests._fixtures.rollouts import Letters, Policy, config, float64_log_probs, to_model

ANSWER = [5, 3, 6]


def scored(tokenizer, prompt):
    engine = functools.partial(TunixRollout, to_model=to_model, drafter=None)
    rollout = engine(rollout_actor=Policy(), tokenizer=tokenizer, mesh=None, rollout_config=config())
    return np.asarray(rollout.get_per_token_logps(np.array([prompt], np.int32), np.array([ANSWER], np.int32)))[0]


@pytest.mark.parametrize("begin", [0, None])
def test_a_beginning_of_id_0_is_no_token_of_a_prompt(begin):
    """As in vanilla's prompts, which have none then."""
    found = scored(Letters(pad=0, begin=begin), [0, 0, 3, 4])
    np.testing.assert_allclose(found, float64_log_probs(Policy(), [3, 4], ANSWER), atol=1e-5)


def test_the_last_token_of_padding_is_the_beginning_if_they_are_one():
    found = scored(Letters(pad=1, begin=1), [1, 1, 3, 4])
    np.testing.assert_allclose(found, float64_log_probs(Policy(), [1, 3, 4], ANSWER), atol=1e-5)
