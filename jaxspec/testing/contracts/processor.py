"""Defines the contract of processors: drafting and plain decoding see equal logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.processing import Prompt

ROWS, NEW = 4, 4  # of a batch; tokens after each prompt
LENGTHS = np.array([3, 1, 2, 3])


class ProcessorContract:
    """Checks a processor; a test class inherits it and sets `processor`.

    Processed logits are a function of the text. They do not depend on which of its tokens are drafts, on the number of
    commits of the others, or on other rows: drafting and plain decoding are treated alike.

    Attributes:
      processor: processor under test.
      vocab: number of tokens.
      stop_token: id that ends a row.
      tolerance: absolute and relative tolerance of logits.

    Example:
      >>> class TestBias(jaxspec.testing.ProcessorContract):
      ...     processor = jaxspec.processors.LogitBias.of({1: 2.0})
      ...
      ...     def expected(self, logits, prompt, new):
      ...         return logits + np.array([0.0, 2.0, 0.0, 0.0])
    """

    processor: Any
    vocab, stop_token = 4, 3
    tolerance = 1e-5

    def expected(self, logits: np.ndarray, prompt: tuple[int, ...], new: tuple[int, ...]) -> np.ndarray | None:
        """Returns the expected logits after a text in plain NumPy, `[v]`; `None` leaves them unchecked."""
        del logits, prompt, new

    def texts(self):
        """Returns prompts `[b, t]`, new tokens `[b, m]` and logits `[b, v]`."""
        rng = np.random.default_rng(0)
        prompts, new = (rng.integers(self.vocab, size=(ROWS, n)) for n in (LENGTHS.max(), NEW))
        return prompts, new, rng.normal(size=(ROWS, self.vocab)).astype(np.float32)

    def process(self, committed, *, order: Any = slice(None), total=NEW):
        """Returns the logits after `total` new tokens, the first `committed` of each row committed, the rest drafts."""
        prompts, new, logits = self.texts()
        after = np.where(np.arange(NEW) < total, new, -1)
        arrays = (prompts[order], LENGTHS[order], after[order], np.asarray(committed)[order], logits[order])
        processor = self.processor.spread(ROWS)
        if processor.by_row:
            processor = jax.tree.map(lambda x: jnp.asarray(x)[order], processor)
        return np.asarray(_process(processor, *arrays, self.stop_token))

    def close(self, found, expected):
        """Fails if logits differ by more than the tolerance."""
        np.testing.assert_allclose(found, expected, atol=self.tolerance, rtol=self.tolerance)

    def test_drafts_are_processed_as_if_they_were_committed(self):
        expected = self.process([NEW] * ROWS)
        for committed in ([0] * ROWS, [1, 2, 3, 0], [NEW - 1] * ROWS):
            self.close(self.process(committed), expected)

    def test_one_commit_is_as_good_as_many(self):
        prompts, new, logits = self.texts()
        found = _one_by_one(self.processor.spread(ROWS), prompts, LENGTHS, new, logits, self.stop_token)
        self.close(found, self.process([NEW] * ROWS))

    def test_the_logits_are_those_expected(self):
        prompts, new, logits = self.texts()
        for total in (0, 2, NEW):
            found = self.process([min(total, 1)] * ROWS, total=total)
            for row in range(ROWS):
                prompt = tuple(prompts[row, : LENGTHS[row]].tolist())
                expected = self.expected(logits[row], prompt, tuple(new[row, :total].tolist()))
                if expected is not None:
                    self.close(found[row], expected)

    def test_a_row_does_not_depend_on_its_place(self):
        committed, order = np.array([1, 4, 0, 2]), np.array([2, 0, 3, 1])
        self.close(self.process(committed, order=order), self.process(committed)[order])

    def test_shapes_and_dtypes_stay(self):
        """Keeps the shapes of the state, as loops require."""
        processor, (prompts, new, logits) = self.processor.spread(ROWS), self.texts()
        arrays = (processor, prompts, LENGTHS, new)
        state = jax.eval_shape(_started, *arrays, logits)
        after = jax.eval_shape(_committed, *arrays, logits)
        assert jax.tree.structure(state) == jax.tree.structure(after)
        same = jax.tree.map(lambda one, other: (one.shape, one.dtype) == (other.shape, other.dtype), state, after)
        assert all(jax.tree.leaves(same))


def _started(processor, prompts, length, new, logits):
    return processor.init(_prompt(prompts, length, 0, logits.shape[1]))


def _committed(processor, prompts, length, new, logits):
    state = _started(processor, prompts, length, new, logits)
    return processor.commit(state, new.astype(jnp.int32), jnp.ones(ROWS, jnp.int32))


def _prompt(prompts, length, stop_token, vocab):
    stops = jnp.full((prompts.shape[0], 1), stop_token, jnp.int32)
    return Prompt(jnp.asarray(prompts, jnp.int32), jnp.asarray(length, jnp.int32), stops, vocab)


@jax.jit
def _process(processor, prompts, length, new, committed, logits, stop_token):
    """Commits some tokens of each row, and passes the others as the path of the only position."""
    new, committed = new.astype(jnp.int32), committed.astype(jnp.int32)
    state = processor.init(_prompt(prompts, length, stop_token, logits.shape[1]))
    state = processor.commit(state, new, committed)
    at = committed[:, None] + jnp.arange(NEW, dtype=jnp.int32)[None]
    path = jnp.where(at < NEW, jnp.take_along_axis(new, jnp.minimum(at, NEW - 1), axis=1), -1)
    return processor(logits[:, None], state, path[:, None])[:, 0]


@jax.jit
def _one_by_one(processor, prompts, length, new, logits, stop_token):
    state = processor.init(_prompt(prompts, length, stop_token, logits.shape[1]))
    for i in range(NEW):
        state = processor.commit(state, new[:, i : i + 1].astype(jnp.int32), jnp.ones(ROWS, jnp.int32))
    return processor(logits[:, None], state, jnp.full((ROWS, 1, 0), -1, jnp.int32))[:, 0]
