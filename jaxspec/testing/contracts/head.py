"""Defines the contract of trained heads: training helps, saved heads draft the same, and devices can split them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType

from jaxspec.core.sampling import Sampling
from jaxspec.decoding.generate import generate
from jaxspec.sharding.params import shard
from jaxspec.testing.collectives import collectives
from jaxspec.testing.random_models import wide_transformer
from jaxspec.text.names import load_head
from jaxspec.training.evaluation import Prompts, evaluate

# Far larger than any other size in a wide model, and its parts equal no other size.
VOCAB, STEP = 8000, 4
WIDE = wide_transformer(0, vocab=VOCAB, heads=2)


class HeadContract:
    """Checks a trained head; a test class sets `target` and `recipe`, and defines `drafter` and a fixture `trained`.

    `trained` is the result of `jaxspec.training.train` for that recipe.

    Example:
      >>> class TestTraining(jaxspec.testing.HeadContract):
      ...     target, recipe = target, jaxspec.heads.eagle.EagleRecipe(capture=(1,))
      ...
      ...     def drafter(self, head):
      ...         return jaxspec.EagleDrafter(head, k=3)
    """

    target: Any
    recipe: Any
    least_acceptance = 0.0
    long_cases = ("test_training_helps_in_the_real_loop", "test_what_is_saved_drafts_as_what_was_trained")

    @property
    def token_counts(self):
        """Returns the count of each token of the target's vocabulary, shape `[v]`."""
        return np.arange(self.target.vocab_size, 0, -1)

    def drafter(self, head):
        """Makes what drafts with a head."""
        raise NotImplementedError

    def test_training_helps_in_the_real_loop(self, trained):
        """Compares the acceptance after training with that before."""
        prompts = Prompts(((1, 2, 3), (5, 4, 8, 2), (9, 9), (7, 1, 0, 3)), max_new_tokens=40, batch=4)

        def drafter(params):
            return self.recipe.drafter(params, self.target, self.token_counts)

        def length(params):
            return evaluate(self.target, drafter(params), prompts)["sampled"].mean_acceptance_length

        before = length(self.recipe.init(jax.random.key(0), self.target, self.token_counts))
        assert length(trained.params) > before + 0.5
        assert trained.curve[-1]["acceptance"] > self.least_acceptance

    def test_what_is_saved_drafts_as_what_was_trained(self, trained):
        tokens = jnp.asarray([[1, 2, 3, 4]], jnp.int32)
        run = jax.jit(lambda head: generate(self.target, self.drafter(head), tokens, max_new_tokens=24))
        found = run(load_head(trained.folder, self.target))
        kept = run(self.recipe.head(trained.params, self.target))
        np.testing.assert_array_equal(found.tokens, kept.tokens)
        assert abs(int(found.stats.accepted[0]) - int(kept.stats.accepted[0])) <= 2  # bfloat16


class SplitHeadContract:
    """Checks a head on two devices; a test class sets `head` (of the target `WIDE`) and `split`, and defines `drafter`.

    Attributes:
      head: head under test.
      split: dotted names of the parameters of which each device holds half.

    Example:
      >>> class TestTwoDevices(jaxspec.testing.SplitHeadContract):
      ...     split = ("fc.kernel",)
    """

    head: Any
    split: tuple[str, ...]
    tokens, least_accepted = 10, 1
    long_cases = ("test_the_same_tokens_on_two_devices_and_no_vocabulary_moves",)

    def drafter(self, head):
        """Makes what drafts with a head."""
        raise NotImplementedError

    def test_the_same_tokens_on_two_devices_and_no_vocabulary_moves(self):
        found, expected, program = on_two_devices(self.head, self.drafter, self.tokens)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_array_equal(found.stats.accepted_at, expected.stats.accepted_at)
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
        assert expected.stats.accepted.sum() >= self.least_accepted
        # Logits and ids of a draft vocabulary do move: its target ids belong to all devices.
        assert not [moved for moved in collectives(program) if {VOCAB, VOCAB // 2} & set(moved.shape)]

    def test_what_is_split(self):
        params = shard(self.head, two_devices()).params
        for path in self.split:
            x = params
            for name in path.split("."):
                x = x[name]
            assert x.addressable_shards[0].data.size == x.size // 2, path


def two_devices():
    """Makes a mesh that splits models, not rows."""
    return jax.make_mesh((1, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


PROMPTS, LENGTHS = np.random.default_rng(0).integers(0, VOCAB, (2, 6)), np.array([6, 1])


def on_two_devices(head, make, tokens):
    """Returns the generations on two devices and on one, and the compiled program for two."""

    @jax.jit
    def run(target, head):
        return generate(
            target,
            make(head),
            jnp.asarray(PROMPTS),
            prompt_length=jnp.asarray(LENGTHS),
            key=jax.random.key(1),
            sampling=Sampling(temperature=0.5),
            max_new_tokens=tokens,
        )

    models = shard(WIDE, two_devices()), shard(head, two_devices())
    program = run.lower(*models).compile()
    return program(*models), run(WIDE, head), program.as_text() or ""
