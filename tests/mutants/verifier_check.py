"""Faults of the check of verification functions: it would call a biased one lossless, or a lossless one biased."""

from tests.mutants.mutant import Mutant

_CELLS = "tests/testing/test_cells.py"
_CHECK = "tests/testing/test_verifier_check.py"
_RESULTS = "tests/conformance/test_results.py"

MUTANTS = (
    Mutant(
        "a threshold of one box of uniforms is not looked for in the others",
        "testing/cells.py",
        "wrong = search.unlike(cells) or search.contradicted(",
        "wrong = search.contradicted(",
        (f"{_CELLS}::test_thresholds_of_one_box_are_looked_for_in_the_others",),
    ),
    Mutant(
        "a uniform of 0 is taken for one of almost 0",
        "testing/emitted.py",
        "0.0 if low == 0 else c",
        "1e-9 if low == 0 else c",
        (f"{_CHECK}::test_uniforms_of_zero_are_looked_at",),
    ),
    Mutant(
        "siblings are drawn with replacement where they should differ",
        "testing/instances.py",
        "            row[siblings] = 0\n",
        "            row[siblings] = row[siblings]\n",
        (f"{_CHECK}::test_faults_where_drafts_branch",),
    ),
    Mutant(
        "top-p comes before top-k",
        "testing/policy_orders.py",
        'ORDER: Order = ("temperature", "top_k", "top_p")',
        'ORDER: Order = ("temperature", "top_p", "top_k")',
        (f"{_CHECK}::test_the_order_of_a_policy",),
    ),
    Mutant(
        "tokens after the rejected draft are taken for an emitted text",
        "testing/engine_call.py",
        "if found[:-1] not in self.draft.paths:",
        "if len(found) > self.instance.length:",
        (f"{_CHECK}::test_tokens_after_the_rejected_draft",),
    ),
    Mutant(
        "random numbers of other methods are taken for given uniforms",
        "testing/given_uniforms.py",
        'if not name.startswith("_") and name not in _METHODS:',
        'if name == "bit_generator":',
        (f"{_CHECK}::test_other_methods_are_refused",),
    ),
    Mutant(
        "a function that ignores its generator is called once, and thought to have one result",
        "testing/verifier_check.py",
        "    axes: int = 1 ",
        "    axes: int = 0 ",
        (f"{_CHECK}::test_randomness_that_is_no_argument_is_no_function_of_it",),
    ),
    Mutant(
        "a function that was given too few uniforms is called biased",
        "testing/verifier_check.py",
        "            self._require_enough_uniforms(",
        "            (lambda *given: None)(",
        (f"{_CHECK}::test_too_few_uniforms_are_no_bias",),
    ),
    Mutant(
        "of three siblings, the third is tried against what the first has left, and nothing shows it",
        "testing/instances.py",
        "Layers.of([0.1, 0.6, 0.3], _THREE), Layers.of([*_HALF, 0])",
        "Layers.of([0.5, 0.5, 0], _THREE), Layers.of([*_HALF, 0])",
        (f"{_CHECK}::test_a_third_draft_of_several_is_looked_at",),
    ),
    Mutant(
        "no third draft is looked at greedily, where two tokens are equally likely",
        "testing/instances.py",
        "[[0.9, 0.1], [0.2, 0.8]], [0.6, 0.4], [0.3, 0.7])",
        "[[0.9, 0.1], [0.2, 0.8]], _HALF, [0.3, 0.7])",
        (f"{_CHECK}::test_greedy",),
    ),
    Mutant(
        "jaxspec prove ends with 0 where a verifier is biased",
        "cli/prove.py",
        "raise typer.Exit(_BIASED)",
        "raise typer.Exit(0)",
        ("tests/cli/test_prove.py::test_what_is_biased",),
    ),
    Mutant(
        "a fault at an edge of the uniforms ends the close look at other targets",
        "testing/verifier_check.py",
        "far.append(one.total_variation(expected) > _TOLERANCE)",
        "far.append(one.total_variation(expected) > _TOLERANCE or bool(one.faults))",
        (f"{_CHECK}::test_uniforms_of_zero_are_looked_at",),
    ),
    Mutant(
        "a biased verifier of another project is called right but for an edge",
        "tests/conformance/run.py",
        'if report["total_variation"] <= _TOLERANCE and kinds',
        "if kinds",
        (f"{_RESULTS}::test_a_bias_is_not_called_an_edge",),
    ),
    Mutant(
        "the published rule of another project is tried with its mistake mended",
        "tests/conformance/peers/hsd.py",
        "(caps[-1] if capped else ratios[-1])",
        "caps[-1]",
        (f"{_RESULTS}::test_the_rule_that_needs_numpy_alone_gives_what_is_recorded",),
    ),
)
