"""Defines the contract of models, regardless of how they keep their history."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.model import Model

ROWS, WHOLE, CHUNK = 3, 8, 4
CAUSAL = np.tril(np.ones((CHUNK, CHUNK), bool))
# Nodes root, a, b, c, where a and b follow the root and c follows a.
ANCESTORS = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], bool)
DEPTHS = np.array([0, 1, 1, 2])
_feed = jax.jit(lambda model, *args, **options: model(*args, **options))


class ModelContract:
    """Checks a model; a test class inherits it and sets `model`.

    A text fed in pieces has the logits of the whole text; rolled back tokens have no effect; a tree has the logits of
    its paths.

    Attributes:
      model: model under test.
      takes_trees: whether to score trees. Set it to False for a model without a cache or with a recurrence.
      captures: whether the model returns hidden states; by default equal to `takes_trees`.
      tolerance: absolute and relative tolerance of logits.

    Example:
      >>> class TestModel(jaxspec.testing.ModelContract):
      ...     model = target
    """

    model: Any
    takes_trees = True
    captures: bool | None = None  # like takes_trees
    tolerance = 1e-4

    @property
    def texts(self):
        return np.random.default_rng(0).integers(0, self.model.vocab_size, size=(ROWS, WHOLE))

    @pytest.fixture
    def whole(self):
        """Returns the logits of the texts fed at once, and a cache that holds them."""
        cache = self.model.init_cache(ROWS, 4 * WHOLE)
        output = _feed(self.model, jnp.asarray(self.texts, jnp.int32), cache)
        return output.logits, cache.append(output.entries)

    def feed_chunk(self, tokens, cache, *, mask=CAUSAL, positions=None):
        """Feeds a few tokens per row, with explicit mask and positions if the model takes them."""
        if not self.takes_trees:
            return _feed(self.model, jnp.asarray(tokens, jnp.int32), cache)
        if positions is None:
            positions = np.asarray(cache.length)[:, None] + np.arange(CHUNK)
        mask = jnp.asarray(np.broadcast_to(mask, (ROWS, CHUNK, CHUNK)))
        positions = jnp.asarray(np.broadcast_to(positions, (ROWS, CHUNK)), jnp.int32)
        return _feed(self.model, jnp.asarray(tokens, jnp.int32), cache, mask=mask, positions=positions)

    def feed_tree(self, nodes, cache):
        """Feeds the tree in one pass, each node seeing its ancestors."""
        positions = np.asarray(cache.length)[:, None] + DEPTHS
        return self.feed_chunk(nodes, cache, mask=ANCESTORS, positions=positions)

    def close(self, found, expected):
        np.testing.assert_allclose(found, expected, atol=self.tolerance, rtol=self.tolerance)

    def test_it_is_a_model(self):
        assert isinstance(self.model, Model)
        leaves, tree = jax.tree.flatten(self.model)
        assert jax.tree.unflatten(tree, leaves).vocab_size == self.model.vocab_size

    def test_shapes_and_dtypes(self):
        cache = self.model.init_cache(ROWS, WHOLE)
        assert cache.length.tolist() == [0] * ROWS
        output = jax.eval_shape(lambda: self.model(jnp.zeros((ROWS, 2), jnp.int32), cache))
        assert output.logits.shape == (ROWS, 2, self.model.vocab_size)
        assert output.logits.dtype == jnp.float32
        assert output.hidden == ()

    def test_hidden_states_are_captured_in_order(self):
        cache = self.model.init_cache(ROWS, WHOLE)

        def run():
            return self.model(jnp.zeros((ROWS, 2), jnp.int32), cache, capture=(1, 0)).hidden

        if not (self.takes_trees if self.captures is None else self.captures):
            with pytest.raises(ValueError, match="captured states"):
                run()
            return
        hidden = jax.eval_shape(run)
        assert [x.shape[:2] for x in hidden] == [(ROWS, 2)] * 2

    def test_a_call_changes_no_cache(self, whole):
        cache = whole[1]
        before = jax.tree.map(np.asarray, cache)
        self.feed_chunk(self.texts[:, :CHUNK], cache)
        jax.tree.map(np.testing.assert_array_equal, before, cache)

    def test_ragged_chunks_give_the_logits_of_the_whole(self, whole):
        """Advances rows by 4, 1 and 3 tokens per call: the rest is rolled back and overwritten."""
        steps, cache = np.array([4, 1, 3]), self.model.init_cache(ROWS, 4 * WHOLE)
        padded = np.pad(self.texts, ((0, 0), (0, CHUNK)))
        length = np.zeros(ROWS, int)
        while (length < WHOLE).any():
            at = length[:, None] + np.arange(CHUNK)
            output = self.feed_chunk(np.take_along_axis(padded, at, axis=1), cache)
            for row in range(ROWS):
                known = min(CHUNK, WHOLE - length[row])
                self.close(output.logits[row, :known], whole[0][row, length[row] : length[row] + known])
            length = np.minimum(length + steps, WHOLE)
            cache = cache.append(output.entries).truncate(jnp.asarray(length, jnp.int32))
        assert cache.length.tolist() == [WHOLE] * ROWS

        def probe(cache):
            return self.feed_chunk(self.texts[:, :CHUNK], cache).logits

        self.close(probe(cache), probe(whole[1]))

    def test_what_was_rolled_back_is_not_seen(self, whole):
        """Feeds two different continuations and rolls them back; only the common past counts."""
        past = jnp.array([3, 0, 5], jnp.int32)
        rolled = whole[1].truncate(past)
        rng = np.random.default_rng(1)
        other = self.feed_chunk(rng.integers(0, self.model.vocab_size, (ROWS, CHUNK)), rolled)
        overwritten = rolled.append(other.entries).truncate(past)
        tokens = np.take_along_axis(self.texts, np.minimum(np.asarray(past)[:, None] + np.arange(CHUNK), 7), axis=1)
        self.close(self.feed_chunk(tokens, overwritten).logits, self.feed_chunk(tokens, rolled).logits)
        known = self.feed_chunk(tokens, overwritten).logits
        for row, start in enumerate(past.tolist()):
            count = min(CHUNK, WHOLE - start)
            self.close(known[row, :count], whole[0][row, start : start + count])

    def test_a_tree_is_scored_as_its_paths(self, whole):
        """Hides siblings from each other, and places cousins at their depth."""
        cache = whole[1].truncate(jnp.array([2, 0, 4], jnp.int32))
        if not self.takes_trees:
            with pytest.raises(ValueError, match="tree mask"):
                self.model(jnp.zeros((ROWS, 1), jnp.int32), cache, mask=jnp.ones((ROWS, 1, 1), jnp.bool_))
            return
        nodes = np.random.default_rng(2).integers(0, self.model.vocab_size, (ROWS, CHUNK))
        tree = self.feed_tree(nodes, cache).logits
        left = self.feed_chunk(nodes[:, [0, 1, 3, 0]], cache).logits
        right = self.feed_chunk(nodes[:, [0, 2, 0, 0]], cache).logits
        self.close(tree[:, [0, 1, 3]], left[:, :3])
        self.close(tree[:, 2], right[:, 1])
        assert np.abs(tree[:, 1] - tree[:, 2]).max() > 1e-3

    def test_a_tree_fed_level_by_level_is_scored_as_in_one_pass(self, whole):
        """Keeps the upper level in a buffer with spare slots, which are not seen."""
        cache = whole[1].truncate(jnp.array([2, 0, 4], jnp.int32))
        if not self.takes_trees:
            with pytest.raises(ValueError, match="tree mask"):
                self.model(jnp.zeros((ROWS, 1), jnp.int32), cache, pending=())
            return
        nodes = np.random.default_rng(3).integers(0, self.model.vocab_size, (ROWS, CHUNK))
        expected = self.feed_tree(nodes, cache)
        found, buffer = [], self.feed_tree(nodes[:, ::-1], cache).entries.pad(CHUNK + 1)  # stale entries of other nodes
        buffered = np.full(CHUNK + 1, CHUNK + 7)
        for level in ([0], [1, 2], [3]):
            seen = np.concatenate([ANCESTORS[level] & (np.arange(CHUNK) < level[0]), np.zeros((len(level), 1))], axis=1)
            mask = np.concatenate([seen, np.eye(len(level))], axis=1).astype(bool)
            positions = np.asarray(cache.length)[:, None] + np.concatenate([buffered, DEPTHS[level]])
            output = _feed(
                self.model,
                jnp.asarray(nodes[:, level], jnp.int32),
                cache,
                mask=jnp.asarray(np.broadcast_to(mask, (ROWS, *mask.shape))),
                positions=jnp.asarray(positions, jnp.int32),
                pending=buffer,
            )
            buffer = buffer.put(output.entries, level[0])
            buffered[level] = DEPTHS[level]
            found.append(output.logits)
        self.close(np.concatenate(found, axis=1), expected.logits)

    def test_an_accepted_path_is_kept_as_if_it_had_been_fed_alone(self, whole):
        if not self.takes_trees:
            return
        cache = whole[1].truncate(jnp.array([2, 0, 4], jnp.int32))
        nodes = np.random.default_rng(4).integers(0, self.model.vocab_size, (ROWS, CHUNK))
        path = np.array([[0, 2, 0], [0, 1, 3], [0, 1, 0]])
        kept = cache.length + jnp.array([2, 3, 1], jnp.int32)
        entries = self.feed_tree(nodes, cache).entries.keep_path(jnp.asarray(path, jnp.int32))
        found = cache.append(entries).truncate(kept)
        alone = self.feed_chunk(np.take_along_axis(nodes, np.pad(path, ((0, 0), (0, 1))), axis=1), cache)
        expected = cache.append(alone.entries).truncate(kept)

        def probe(cache):
            return self.feed_chunk(self.texts[:, :CHUNK], cache).logits

        self.close(probe(found), probe(expected))

    def test_a_full_cache_is_written_to_its_last_slot(self, whole):
        """Fills a whole cache: no write is shifted back."""
        cache = self.model.init_cache(ROWS, WHOLE)
        for start in range(0, WHOLE, CHUNK):
            cache = cache.append(self.feed_chunk(self.texts[:, start : start + CHUNK], cache).entries)
        assert cache.length.tolist() == [WHOLE] * ROWS
        cache = cache.truncate(jnp.full(ROWS, CHUNK, jnp.int32))
        self.close(self.feed_chunk(self.texts[:, CHUNK:], cache).logits, whole[0][:, CHUNK:])
