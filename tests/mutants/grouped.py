"""Faults of weights in groups, and of those that are taken over from qwix."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/ops/test_grouped.py"
_PRODUCT = f"{_TESTS}::test_a_product_is_that_of_the_weight_it_stands_for"
_QWIX = "tests/nn/test_qwix.py"

MUTANTS = (
    Mutant(
        "zeros are added in a grouped product",
        "ops/grouped.py",
        "sums = sums - totals.reshape",
        "sums = sums + totals.reshape",
        (_PRODUCT,),
    ),
    Mutant(
        "all groups of a product have the first one's scale",
        "ops/grouped.py",
        "sums * scale.astype(jnp.float32)[:, None]",
        "sums * scale.astype(jnp.float32)[:1, None]",
        (_PRODUCT,),
    ),
    Mutant(
        "scales are stored for the groups from the last to the first",
        "ops/grouped.py",
        "jnp.moveaxis(jnp.asarray(scale), -1, 0)",
        "jnp.moveaxis(jnp.asarray(scale), -1, 0)[::-1]",
        (f"{_TESTS}::test_what_is_stored_is_what_was_given",),
    ),
    Mutant(
        "grouped values are cut and not rounded",
        "ops/grouped.py",
        "jnp.round(grouped / safe[..., None])",
        "jnp.trunc(grouped / safe[..., None])",
        (f"{_TESTS}::test_no_value_moves_by_more_than_half_a_step",),
    ),
    Mutant(
        "a mesh splits the only group's values nowhere",
        "ops/grouped.py",
        "within = None if self.values.shape[0] > 1 else inputs",
        "within = None",
        (f"{_TESTS}::test_a_mesh_splits_groups_and_within_the_only_one",),
    ),
    Mutant(
        "an int4 is counted as a byte",
        "core/memory.py",
        "math.ceil(x.size * bits / 8)",
        "x.size * x.dtype.itemsize",
        (f"{_TESTS}::test_two_int4_are_a_byte",),
    ),
    Mutant(
        "a group that divides some weights alone is let through",
        "nn/convert.py",
        "if _is_product(path) and x.shape[-1] % group:",
        "if _is_product(path) and x.shape[-1] < group:",
        (f"{_TESTS}::test_a_bad_group_is_said",),
    ),
    Mutant(
        "a packed weight of another shape is taken for the parameter",
        "nn/layers.py",
        "if stored.shape != shape:",
        "if stored.ndim != len(shape):",
        (f"{_TESTS}::test_parts_that_do_not_fit_are_said",),
    ),
    Mutant(
        "unsigned integers of qwix keep their zeros",
        "nn/qwix.py",
        "zero.astype(jnp.int16) - half",
        "zero.astype(jnp.int16)",
        (f"{_QWIX}::test_the_numbers_are_those_of_the_array",),
    ),
    Mutant(
        "tiles of qwix are taken one after the other",
        "nn/qwix.py",
        "jnp.repeat(x, size // x.shape[axis], axis=axis)",
        "jnp.concatenate([x] * (size // x.shape[axis]), axis=axis)",
        (f"{_QWIX}::test_the_numbers_are_those_of_the_array",),
    ),
    Mutant(
        "nf4 of qwix is read as integers",
        "nn/qwix.py",
        'qtype.startswith("nf")',
        'qtype.startswith("float")',
        (f"{_QWIX}::test_what_cannot_be_taken_over_is_said",),
    ),
)
