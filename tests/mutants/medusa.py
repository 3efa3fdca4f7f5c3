"""Faults of Medusa's heads: which state, which token, which head, and which tokens their guesses are."""

from tests.mutants.mutant import Mutant

_DRAFTER, _TRAINING = "heads/medusa/head.py", "heads/medusa/training.py"
_TESTS, _RECIPE = "tests/heads/medusa/test_drafter.py", "tests/heads/medusa/test_training.py"
_PROBS = f"{_TESTS}::TestMedusa::test_the_reported_distribution_is_that_of_the_drafts"
_LOSS = f"{_RECIPE}::test_the_loss_is_of_the_distributions_that_are_drafted_from"

MUTANTS = (
    Mutant(
        "the newest state is that of the last accepted draft's parent",
        _DRAFTER,
        "jnp.maximum(count - 1, 0)",
        "jnp.maximum(count - 2, 0)",
        (f"{_TESTS}::TestMedusa::test_after_any_acceptance_it_drafts_as_if_it_were_new",),
    ),
    Mutant(
        "the first state is that of the token before",
        _DRAFTER,
        "newest = take_row(prefilled.hidden[0], jnp.maximum(context.length - 2 - start, 0))",
        "newest = take_row(prefilled.hidden[0], jnp.maximum(context.length - 3 - start, 0))",
        (_PROBS,),
    ),
    Mutant(
        "heads read the token of the state and not the one after it",
        _DRAFTER,
        "last = context.last",
        "last = jnp.take_along_axis(context.tokens, jnp.maximum(context.length[:, None] - 2, 0), axis=1)",
        (_PROBS,),
    ),
    Mutant(
        "heads guess after one token",
        _DRAFTER,
        "draftable = context.draftable & (context.length >= 2)",
        "draftable = context.draftable & (context.length >= 1)",
        (f"{_TESTS}::TestMedusa::test_only_a_text_of_one_token_is_without_guesses",),
    ),
    Mutant(
        "all heads of a chain share their noise",
        _DRAFTER,
        "draw(policy, logits, rng, offsets, vocab_size, self.head.ids)",
        "draw(policy, logits, rng, 0 * offsets, vocab_size, self.head.ids)",
        (f"{_TESTS}::test_the_joint_distribution_of_a_chain",),
    ),
    Mutant(
        "a tree's level is guessed by the head of the level above",
        _DRAFTER,
        "levels, logits = np.sum(tree.ancestors, axis=1) - 1,",
        "levels, logits = np.maximum(np.sum(tree.ancestors, axis=1) - 2, 0),",
        (f"{_TESTS}::TestTree::test_the_reported_distribution_is_that_of_the_drafts",),
    ),
    Mutant(
        "a guess is a place in the draft vocabulary",
        _DRAFTER,
        "jnp.where(valid, self.head.token_ids(chosen), 0)",
        "jnp.where(valid, chosen, 0)",
        (f"{_TESTS}::TestPapersHeads::test_the_reported_distribution_is_that_of_the_drafts",),
    ),
    Mutant(
        "head 0 is trained to guess what the target's own head does",
        _TRAINING,
        "return head(target, at_places(last, self.of_head(self.places, 0) - 2), self.of_head(self.before, 0))",
        "return head(target, at_places(last, self.of_head(self.places, 0) - 1), self.of_head(self.before, 0))",
        (_LOSS,),
    ),
    Mutant(
        "the label of each head is the distribution of the token before",
        _TRAINING,
        "at_places(features.last, chosen.places - 1)), target.head",
        "at_places(features.last, chosen.places - 2)), target.head",
        (_LOSS,),
    ),
    Mutant(
        "a guess may be of another answer",
        _TRAINING,
        "return here & self.of_head(self.there, head)",
        "return self.of_head(self.there, head)",
        (_LOSS,),
    ),
    Mutant(
        "rows of a draft vocabulary keep the file's order, its ids do not",
        "heads/medusa/checkpoint.py",
        "rows = (np.argsort(ids), held)",
        "rows = (np.arange(held), held)",
        ("tests/heads/medusa/test_checkpoint.py::test_vllms_layout_with_a_draft_vocabulary[False]",),
    ),
)
