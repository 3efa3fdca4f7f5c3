"""Faults of drafting trees: who sees whom, which distribution a node has, and what is kept of a path."""

from tests.mutants.mutant import Mutant

_TREE = "tests/drafters/test_tree.py"
_DYNAMIC = "tests/drafters/test_dynamic_tree.py"
_UNION = "tests/contrib/test_union.py"
_MODELS = "tests/nn/test_models.py"
_PROBS = "test_the_reported_distribution_is_that_of_the_drafts"
_FRESH = "test_after_any_acceptance_it_drafts_as_if_it_were_new"
_GREEDY = "test_greedy_output_is_that_of_plain_decoding"
_WITHOUT = f"{_TREE}::TestWithoutReplacement"

MUTANTS = (
    Mutant(
        "a list of paths may leave out a rank, and later ranks move up",
        "core/tree.py",
        "if needed and needed[-1] >= 0 and tuple(needed) not in found:",
        "if needed and needed == above and tuple(needed) not in found:",
        ("tests/core/test_tree.py::test_what_is_no_tree",),
    ),
    Mutant(
        "a drafted node sees its siblings while it is drafted from",
        "drafters/frontier.py",
        "jnp.eye(width, dtype=jnp.bool_)[None]",
        "jnp.ones((width, width), jnp.bool_)[None]",
        (f"{_TREE}::TestTransformer::{_PROBS}",),
    ),
    Mutant(
        "a drafted node sees its parent and none above it",
        "drafters/frontier.py",
        "jnp.take_along_axis(above, after.parents[..., None], axis=1) | (numbers == parent[..., None])",
        "numbers == parent[..., None]",
        (f"{_WITHOUT}::{_PROBS}",),
    ),
    Mutant(
        "a drafted node sees the ancestors of the node fed at its index before",
        "drafters/frontier.py",
        "jnp.take_along_axis(above, after.parents[..., None], axis=1) | (numbers == parent[..., None])",
        "above | (numbers == parent[..., None])",
        (f"{_DYNAMIC}::test_the_nodes_are_those_of_a_plain_search",),
        slow=True,
    ),
    Mutant(
        "positions of drafted nodes count nodes instead of depth",
        "drafters/frontier.py",
        "jnp.broadcast_to(length + level, (batch, width))",
        "length + level * width + jnp.arange(width, dtype=jnp.int32)[None]",
        (f"{_WITHOUT}::{_PROBS}",),
    ),
    Mutant(
        "every level's entries are put in the first one's place",
        "drafters/frontier.py",
        "pending.put(output.entries, level * width)",
        "pending.put(output.entries, 0 * level)",
        (f"{_WITHOUT}::{_PROBS}",),
    ),
    Mutant(
        "the draft's cache misses the path that was accepted",
        "drafters/frontier.py",
        "return cache.append(entries).truncate(cache.length + accepted)",
        "return cache",
        (f"{_WITHOUT}::{_FRESH}",),
    ),
    Mutant(
        "the draft's cache keeps the first nodes instead of the path",
        "drafters/frontier.py",
        "path = at(jnp.concatenate(climb, axis=1), verdict.accepted[:, None] - 1 - steps)",
        "path = jnp.broadcast_to(steps, verdict.path.shape)",
        (f"{_WITHOUT}::{_FRESH}",),
    ),
    Mutant(
        "of equal drafts, the draft's cache keeps one that was not fed",
        "drafters/frontier.py",
        "path = at(jnp.concatenate(climb, axis=1), verdict.accepted[:, None] - 1 - steps)",
        "path = verdict.path",
        (f"{_TREE}::TestWithReplacement::{_FRESH}",),
    ),
    Mutant(
        "a tree's draft window starts one token late",
        "drafters/draft_model.py",
        "start = jnp.maximum(context.length - 2, 0)",
        "start = jnp.maximum(context.length - 1, 0)",
        (f"{_WITHOUT}::{_FRESH}",),
    ),
    Mutant(
        "a sibling's distribution is not renormalized",
        "drafters/children.py",
        "jnp.where(total > -jnp.inf, left - total, parent)",
        "jnp.where(total > -jnp.inf, left, parent)",
        (f"{_WITHOUT}::{_PROBS}",),
    ),
    Mutant(
        "a sibling's distribution still has the siblings before it",
        "drafters/children.py",
        "left = jnp.where(ids == before[:, :, sibling : sibling + 1], -jnp.inf, left)",
        "left = jnp.where(ids < 0, before[:, :, sibling : sibling + 1].astype(left.dtype), left)",
        (f"{_WITHOUT}::{_PROBS}",),
    ),
    Mutant(
        "siblings do not stand in the order they were drawn in",
        "drafters/children.py",
        "best, tokens = top_tokens(weights + noise, count)\n",
        "best, tokens = (x[..., ::-1] for x in top_tokens(weights + noise, count))\n",
        (f"{_TREE}::test_each_coupled_child_is_the_target_s_next_best_draw",),
    ),
    Mutant(
        "a child that has no probability is submitted",
        "drafters/children.py",
        "best, tokens = top_tokens(weights + noise, count)\n        return tokens, best > -jnp.inf",
        "best, tokens = top_tokens(weights + noise, count)\n        return tokens, best == best",
        (f"{_TREE}::test_a_row_at_temperature_zero_has_one_certain_path",),
    ),
    Mutant(
        "what follows a missing child is submitted",
        "drafters/tree.py",
        "~jnp.any(missing, axis=-1)",
        "there & ~jnp.all(missing, axis=-1)",
        (f"{_TREE}::test_a_row_at_temperature_zero_has_one_certain_path",),
    ),
    Mutant(
        "all nodes of a level share one noise: no draft index in the key",
        "core/random.py",
        "for index in self.draft:",
        "for index in self.draft[:0]:",
        (
            f"{_TREE}::test_no_two_nodes_share_noise",
            f"{_UNION}::test_drafters_of_one_model_draw_with_noise_of_their_own",
        ),
    ),
    Mutant(
        "all levels of a tree share one noise",
        "drafters/children.py",
        "rng.of_draft(slot).draft_noise(level, vocab) for slot in range(width)]",
        "rng.of_draft(slot).draft_noise(0 * level, vocab) for slot in range(width)]",
        (f"{_TREE}::test_no_two_nodes_share_noise",),
    ),
    Mutant(
        "siblings with replacement share one noise",
        "drafters/children.py",
        "rng.of_draft(slot).draft_noise(level, vocab) for slot in range(width * count)]",
        "rng.of_draft(slot // count).draft_noise(level, vocab) for slot in range(width * count)]",
        (f"{_TREE}::test_no_two_nodes_share_noise",),
    ),
    Mutant(
        "drafts that are not independent pass for such",
        "drafters/tree.py",
        "tree.depth) and isinstance(self.draw, WithReplacement)",
        "tree.depth)",
        (f"{_TREE}::test_only_independent_chains_are_alike",),
    ),
    Mutant(
        "a dynamic tree scores nodes without their path",
        "drafters/dynamic_tree.py",
        "paths = (scores[..., None] + added)",
        "paths = (0 * scores[..., None] + added)",
        (f"{_DYNAMIC}::test_the_nodes_are_those_of_a_plain_search",),
        slow=True,
    ),
    Mutant(
        "a dynamic tree has children without their parents: of equals the last is chosen",
        "drafters/dynamic_tree.py",
        "chosen = jnp.sort(jax.lax.top_k(scores, count)[1].astype(jnp.int32), axis=1)",
        "chosen = jnp.sort(scores.shape[1] - 1 - jax.lax.top_k(scores[:, ::-1], count)[1].astype(jnp.int32), axis=1)",
        (f"{_DYNAMIC}::test_a_reranked_tree_holds_every_parent",),
    ),
    Mutant(
        "a dynamic tree takes one level's numbers for another's",
        "drafters/dynamic_tree.py",
        "offsets = count + levels.tokens.shape[2] * jnp.arange(depth, dtype=jnp.int32)",
        "offsets = count + 0 * jnp.arange(depth, dtype=jnp.int32)",
        (f"{_DYNAMIC}::test_the_nodes_are_those_of_a_plain_search",),
        slow=True,
    ),
    Mutant(
        "the drafters of a union share one noise",
        "contrib/union.py",
        "bounded.propose(drafter, rng.of_draft(index), own, context)",
        "bounded.propose(drafter, rng, own, context)",
        (f"{_UNION}::test_drafters_of_one_model_draw_with_noise_of_their_own",),
    ),
    Mutant(
        "a drafter of a union takes another's accepted drafts for its own",
        "contrib/union.py",
        "heard.append(Verdict(accepted, ",
        "heard.append(Verdict(verdict.accepted, ",
        (f"{_UNION}::TestModelsAndText::{_FRESH}",),
    ),
    Mutant(
        "certain drafts among drawn ones have a soft distribution",
        "drafters/lookup.py",
        "jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.inf)",
        "jnp.where(ids == tokens[..., None], jnp.float32(0), -jnp.log(jnp.float32(vocab_size)))",
        (f"{_UNION}::TestModelsAndText::{_PROBS}",),
    ),
    Mutant(
        "every node of a tree sees all others when it is verified",
        "core/tree.py",
        "return seen.at[:, :, 0].set(True)",
        "return jnp.ones_like(seen)",
        (f"{_WITHOUT}::{_GREEDY}",),
    ),
    Mutant(
        "a node's grandparents are not seen when it is verified",
        "core/tree.py",
        "for _ in range(depth):",
        "for _ in range(min(depth, 2)):",
        ("tests/core/test_tree.py::test_ancestors_depths_and_mask_of_trees_that_differ_in_each_row",),
    ),
    Mutant(
        "positions of verified nodes count nodes instead of depth",
        "decoding/round.py",
        '"positions": length[:, None] - 1 + depth,',
        '"positions": length[:, None] - 1 + jnp.arange(depth.shape[1], dtype=jnp.int32)[None],',
        (f"{_WITHOUT}::{_GREEDY}",),
    ),
    Mutant(
        "the target's cache keeps the first nodes instead of the path",
        "decoding/round.py",
        "entries = entries.keep_path(rows)",
        "entries = entries.keep_path(jnp.broadcast_to(jnp.arange(rows.shape[1], dtype=jnp.int32), rows.shape))",
        (f"{_WITHOUT}::{_GREEDY}",),
    ),
    Mutant(
        "what is kept of a path is its first entries",
        "nn/cache.py",
        "jnp.take_along_axis(x, at, axis=3)",
        "x[:, :, :, : nodes.shape[1]]",
        (f"{_MODELS}::TestLlama::test_an_accepted_path_is_kept_as_if_it_had_been_fed_alone",),
    ),
    Mutant(
        "pending tokens stand where the fed ones do",
        "nn/attention.py",
        "fresh.seen & within(positions, fresh.positions, window)",
        "fresh.seen & within(positions, fresh.positions[:, -1:], window)",
        (f"{_DYNAMIC}::test_a_transformer_finds_them_too",),
        slow=True,
    ),
)
