"""Defines the contract of caches: after any append, truncation or move, each row holds its text."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.rows import row_axes

ROWS, PIECE, SLOTS = 3, 4, 16
LENGTHS = np.array([4, 8, 6])  # after two pieces; no row is cut below the first piece, for recurrences
_feed = jax.jit(lambda model, tokens, cache: model(tokens, cache))


class CacheContract:
    """Checks the cache of a model; a test class inherits it and sets `model`.

    Appending advances every row and changes no shape. A truncated row continues as if the rest had never been fed. Rows
    that are taken, inserted and gathered by `jaxspec.core.row_axes` keep their contents.

    Attributes:
      model: model whose cache is tested, by the logits of the tokens fed next.
      tolerance: absolute and relative tolerance of logits.

    Example:
      >>> class TestCache(jaxspec.testing.CacheContract):
      ...     model = target
    """

    model: Any
    tolerance = 1e-4

    def texts(self):
        """Returns texts `[b, 8]` and the tokens fed after them, `[b, 2]`."""
        texts = np.random.default_rng(0).integers(self.model.vocab_size, size=(ROWS, 2 * PIECE + 2))
        return texts[:, : 2 * PIECE], texts[:, 2 * PIECE :]

    def held(self):
        """Returns a cache that holds `LENGTHS` tokens of the texts."""
        texts, _ = self.texts()
        cache = self.model.init_cache(ROWS, SLOTS)
        for start, length in ((0, np.full(ROWS, PIECE)), (PIECE, LENGTHS)):
            output = _feed(self.model, jnp.asarray(texts[:, start : start + PIECE], jnp.int32), cache)
            cache = cache.append(output.entries).truncate(jnp.asarray(length, jnp.int32))
        return cache

    def expected(self):
        """Returns the logits of the tokens fed next, from one pass over each complete text."""
        texts, following = self.texts()
        whole = np.zeros((ROWS, SLOTS), np.int32)
        for row, length in enumerate(LENGTHS):
            whole[row, : length + 2] = [*texts[row, :length], *following[row]]
        logits = _feed(self.model, jnp.asarray(whole), self.model.init_cache(ROWS, SLOTS)).logits
        return np.stack([logits[row, length : length + 2] for row, length in enumerate(LENGTHS)])

    def check(self, cache, order):
        """Fails if the rows of a cache do not hold the texts of the rows in `order`."""
        assert cache.length.tolist() == LENGTHS[order].tolist()
        tokens = jnp.asarray(self.texts()[1][order], jnp.int32)
        first = _feed(self.model, tokens[:, :1], cache)  # then from rows of different lengths
        second = _feed(self.model, tokens[:, 1:], cache.append(first.entries))
        logits = np.concatenate([first.logits, second.logits], axis=1)
        np.testing.assert_allclose(logits, self.expected()[order], atol=self.tolerance, rtol=self.tolerance)

    def test_append_advances_rows_and_changes_no_shape(self):
        """Keeps shapes and dtypes, as loops need."""
        cache = self.held()
        output = _feed(self.model, jnp.asarray(self.texts()[1], jnp.int32), cache)
        longer = cache.append(output.entries)
        assert longer.length.tolist() == (LENGTHS + 2).tolist()
        assert jax.tree.structure(cache) == jax.tree.structure(longer)
        for one, other in zip(jax.tree.leaves(cache), jax.tree.leaves(longer), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)

    def test_a_row_that_was_cut_goes_on_as_if_the_rest_had_not_been_fed(self):
        self.check(self.held(), np.arange(ROWS))

    def test_gathered_rows_hold_what_they_held(self):
        order = np.array([2, 2, 0])
        self.check(self.axes().gather(self.held(), jnp.asarray(order, jnp.int32)), order)

    def test_an_inserted_row_leaves_the_others(self):
        cache, axes = self.held(), self.axes()
        self.check(axes.insert(cache, axes.take(cache, 1), 0), np.array([1, 1, 2]))

    def axes(self):
        """Returns the row axis of each leaf of the cache."""
        return row_axes(lambda batch: self.model.init_cache(batch, SLOTS))
