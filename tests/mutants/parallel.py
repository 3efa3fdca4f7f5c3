"""Faults of parallel drafts: whose noise, whose distribution, whose weights, and what is sent between them."""

from tests.mutants.mutant import Mutant

_PARALLEL = "contrib/parallel.py"
_BESIDE = "tests/sharding/test_beside.py"
_PROPOSALS = f"{_BESIDE}::test_the_proposals_are_those_of_a_union"
_SENT = f"{_BESIDE}::test_nothing_of_a_draft_leaves_its_devices_but_tokens_and_distributions"
_HELD = f"{_BESIDE}::test_each_device_holds_its_own_draft_alone"

MUTANTS = (
    Mutant(
        "all parallel models draw with one noise",
        _PARALLEL,
        "rng.of_draft(number)",
        "rng.of_draft(0 * number)",
        (_PROPOSALS,),
        slow=True,
    ),
    Mutant(
        "the distribution of another model is reported",
        _PARALLEL,
        "target.logits(_side_by_side(chains.log_probs))",
        "target.logits(_side_by_side(chains.log_probs[::-1]))",
        (_PROPOSALS,),
        slow=True,
    ),
    Mutant(
        "every place along the axis gets the first model",
        _PARALLEL,
        "(part,) = parts[first]",
        "part = parts[0]",
        (_HELD, _PROPOSALS),
        slow=True,
    ),
    Mutant(
        "models keep drafts that only another one's chain kept",
        _PARALLEL,
        "jnp.argmin(heard.accepted, axis=0)",
        "jnp.argmax(heard.accepted, axis=0)",
        (_PROPOSALS,),
        slow=True,
    ),
    Mutant(
        "shared noise is sent to the drafts",
        _PARALLEL,
        "rng.afresh()",
        "rng",
        (_SENT,),
        slow=True,
    ),
    Mutant(
        "a device's part of the target's vocabulary is not of its draft's",
        "sharding/rules.py",
        'vocab=("model", "draft"),',
        'vocab=("draft", "model"),',
        (_SENT,),
        slow=True,
    ),
    Mutant(
        "different models pass for replicas of one",
        _PARALLEL,
        'object.__setattr__(self, "alike", alike)',
        'object.__setattr__(self, "alike", True)',
        ("tests/contrib/test_parallel.py::test_only_replicas_of_one_model_are_alike",),
    ),
)
