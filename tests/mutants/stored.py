"""Faults of weights as a file stores them: of their repacking, of products with them, and of how they are held."""

from tests.mutants.mutant import Mutant

_NATIVE = "ops/native/"
_TILES, _PRODUCT, _ROUND, _CALLS = (
    f"{_NATIVE}{name}" for name in ("tiles.h", "stored_product.h", "activations.h", "stored.cpp")
)
_TESTS, _KERNELS, _HELD = (
    f"tests/{path}.py" for path in ("ops/test_stored", "ops/test_stored_kernels", "checkpoints/test_stored")
)
_VALUES, _PRODUCTS = (
    f"{_TESTS}::test_values_are_those_of_the_file_to_the_bit",
    f"{_TESTS}::test_products_are_those_of_rounded_activations",
)
_ALONE = f"{_TESTS}::test_a_row_does_not_depend_on_those_beside_it"
_DRAWN = f"{_KERNELS}::test_any_shape_and_numbers"

MUTANTS = (
    Mutant(
        "stored scales are those of the neighboring output",
        _TILES,
        "to + kScaleAt + 2 * lane,",
        "to + kScaleAt + 2 * (lane ^ 1),",
        (_VALUES,),
    ),
    Mutant(
        "codes of four inputs change places when they are repacked",
        _TILES,
        "[lane * 4 + i % 4] = block",
        "[lane * 4 + (i % 4 ^ 1)] = block",
        (_VALUES,),
    ),
    Mutant("nibbles are repacked in the other order", _TILES, "<< v / 4 * 4;", "<< (4 - v / 4 * 4);", (_VALUES,)),
    Mutant(
        "a product reads the plane of two bits and forgets that of four",
        _TILES,
        "codes[v] = kFour ? codes[v] | two : two;",
        "codes[v] = two;",
        (_PRODUCTS,),
    ),
    Mutant(
        "a product reads every input's single bit one place off",
        _TILES,
        "v >= shift ? bits >> (v - shift)",
        "v >= shift ? bits >> (v - shift + 1)",
        (_PRODUCTS,),
    ),
    Mutant(
        "blocks that are not finite are accepted",
        _TILES,
        "!IsFinite(block.scale) ||",
        "",
        (f"{_TESTS}::test_scales_that_are_not_finite_are_refused",),
    ),
    Mutant("stored minima are subtracted", _PRODUCT, "Broadcast(sum), sums[", "Broadcast(-sum), sums[", (_PRODUCTS,)),
    Mutant(
        "the offset counts half of a group",
        _PRODUCT,
        "(Format::kHalves == 1 ? one.all : one.whole[half]);",
        "one.whole[half];",
        (_PRODUCTS,),
    ),
    # These three need a processor with products of bytes, on which 16 bits are two of them.
    Mutant(
        "the upper bytes of 16 bits count half",
        _PRODUCT,
        "found[row] * 256 + low;",
        "found[row] * 128 + low;",
        (_PRODUCTS,),
    ),
    Mutant(
        "the upper bytes of 16 bits are taken for the lower ones too",
        _PRODUCT,
        "codes[v], one.low + 4 * v);",
        "codes[v], one.values + 4 * v);",
        (_PRODUCTS,),
    ),
    Mutant(
        "the sum of a group is that of its first half",
        "ops/native/activations.h",
        "to[g].sums[0] + to[g].sums[1];",
        "to[g].sums[0];",
        (_PRODUCTS,),
    ),
    Mutant(
        "the sums of a group's halves change places",
        _PRODUCT,
        ": one.sums[half];",
        ": one.sums[1 - half];",
        (_PRODUCTS,),
    ),
    Mutant(
        "both halves have the first one's factor",
        _PRODUCT,
        "const int at = (group * Format::kHalves + half) * kLanes;",
        "const int at = group * Format::kHalves * kLanes;",
        (_PRODUCTS,),
    ),
    Mutant(
        "rows that share a tile are written in the other order",
        _PRODUCT,
        "y[row * out + o] = found[o];",
        "y[(kRows - 1 - row) * out + o] = found[o];",
        (_PRODUCTS,),
    ),
    Mutant(
        "three rows are summed in another order than one",
        _PRODUCT,
        "weights.scales[half] * one.scale, sums[row]);",
        "weights.scales[half] * one.scale, kRows == 3 ? Lanes{} : sums[row]) + (kRows == 3 ? sums[row] : Lanes{});",
        (_ALONE,),
        slow=True,
    ),
    Mutant(
        "rows after the first eight begin one too late",
        _PRODUCT,
        "x += kMostTileRows * groups,",
        "x += (kMostTileRows + 1) * groups,",
        (_PRODUCTS,),
    ),
    Mutant(
        "full tiles have as many outputs as the last one",
        _CALLS,
        "std::min<int64_t>(kLanes, out - tile * kLanes));",
        "out % kLanes ? out % kLanes : kLanes);",
        (_PRODUCTS,),
    ),
    Mutant(
        "the last groups of a row are rounded as its first ones",
        _ROUND,
        "Round(x + g * kGroup, &most[g]",
        "Round(x + (groups - g < kLanes ? 0 : g) * kGroup, &most[g]",
        (_PRODUCTS,),
    ),
    Mutant(
        "16 bits go to the smallest groups",
        _ROUND,
        "fine[g] = size > least ||",
        "fine[g] = size < least ||",
        (f"{_TESTS}::test_an_activation_moves_by_half_a_step_at_most",),
    ),
    Mutant("16 bits go to all groups of one size", _ROUND, "equal-- > 0);", "equal > 0);", (_DRAWN,)),
    Mutant(
        "activations that are not finite are taken for zeros",
        _ROUND,
        "most[g] < INFINITY ? 0.0f : NAN;",
        "0.0f;",
        (f"{_TESTS}::test_what_is_not_finite_stays_in_its_row",),
    ),
    Mutant(
        "a row of another output's lane is read",
        _CALLS,
        "if (row < 0 || row >= outputs)",
        "if (row < 0 || row > outputs)",
        (f"{_KERNELS}::test_wrong_rows_are_an_error",),
    ),
    Mutant(
        "rows of a stored weight are not counted from its end",
        "ops/stored.py",
        "index = jnp.arange(self.size // self.shape[-1], dtype=jnp.int32).reshape(self.shape[:-1])[rows]",
        "index = jnp.asarray(rows, jnp.int32)",
        (f"{_KERNELS}::test_rows_out_of_range_are_those_of_an_array",),
    ),
    Mutant(
        "parts of a joined weight stand in the other order",
        "ops/packed.py",
        "[part.product(x) for part in self.parts]",
        "[part.product(x) for part in self.parts[::-1]]",
        (f"{_TESTS}::test_parts_in_different_formats_stand_side_by_side",),
    ),
    Mutant(
        "keys and values of unlike formats change places",
        "checkpoints/stored.py",
        "source, dtype) for name in names]",
        "source, dtype) for name in names[::-1]]",
        (_HELD + "::test_values_are_those_of_the_file_to_the_bit",),
    ),
    Mutant(
        "blocks are moved as if they were rows, for any parameter",
        "checkpoints/stored.py",
        "_blocks(tensors[name]) if mapping.by_rows else None",
        "_blocks(tensors[name])",
        (f"{_HELD}::test_what_is_not_made_of_rows_is_held_as_numbers",),
    ),
)
