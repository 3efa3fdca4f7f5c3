"""Faults of readers of quantized safetensors."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/checkpoints/test_quantized.py"
_READ = f"{_TESTS}::test_weights_are_read_to_the_bit"
_RECORDED = f"{_TESTS}::test_weights_are_those_of_the_programs_that_wrote_them"
_Q = "checkpoints/quantized"

MUTANTS = (
    Mutant(
        "numbers of four bits are packed without their middle",
        f"{_Q}/packing.py",
        "values.view(np.uint8) + np.uint8(1 << bits - 1)",
        "values.view(np.uint8) & np.uint8((1 << bits) - 1)",
        (f"{_TESTS}::test_what_is_packed_is_read_again[4]",),
    ),
    Mutant(
        "packed weights are rounded with another scale than the one that is written",
        f"{_Q}/compressed.py",
        "wide = scale.astype(np.float32)[..., None]",
        "wide = (largest * part)[..., None] * 1.1",
        (f"{_TESTS}::test_what_is_packed_is_read_again",),
    ),
    Mutant(
        "the first scale that is tried is taken",
        f"{_Q}/compressed.py",
        "better = error < best",
        "better = np.isinf(best)",
        (f"{_TESTS}::test_what_is_packed_is_read_again[4]",),
    ),
    Mutant(
        "heads are read as if none were quantized",
        "checkpoints/huggingface.py",
        "if not hold_quantized(tensors):",
        "if True:",
        ("tests/heads/eagle/test_checkpoint.py::test_matrices_of_four_bits",),
    ),
    Mutant(
        "heads of floats are read by what their target's configuration says",
        "checkpoints/huggingface.py",
        "if not hold_quantized(tensors):",
        "if False:",
        ("tests/heads/eagle/test_checkpoint.py::test_a_configuration_of_the_target_is_no_matter_for_plain_tensors",),
    ),
    Mutant(
        "what is not finite is packed",
        f"{_Q}/compressed.py",
        "if not np.isfinite(floats).all():",
        "if False:",
        (f"{_TESTS}::test_what_cannot_be_packed_is_said",),
    ),
    Mutant(
        "GPTQ's zeros are one too low",
        f"{_Q}/gptq.py",
        "center(unpack(words + ones, bits), bits)",
        "center(unpack(words, bits), bits)",
        (f"{_RECORDED}[gptq, 4 bits]", f"{_READ}[gptq]"),
    ),
    Mutant(
        "one is added to GPTQ's zeros, not to their words",
        f"{_Q}/gptq.py",
        "center(unpack(words + ones, bits), bits)",
        "center(unpack(words, bits) + np.uint8(1) & np.uint8(2**bits - 1), bits)",
        (f"{_READ}[gptq]",),
    ),
    Mutant(
        "the second version of GPTQ is read as the first",
        f"{_Q}/gptq.py",
        "version == _V2 or",
        "version == 2 or",
        (f"{_READ}[gptq, second version]",),
    ),
    Mutant(
        "symmetric zeros are one too high where the version is wrong",
        f"{_Q}/gptq.py",
        ' or (settings.get("sym", True) and not zero.any())',
        "",
        (f"{_READ}[gptq, second version called first]",),
    ),
    Mutant(
        "groups by activations are taken for runs",
        f"{_Q}/module.py",
        "np.array_equal(found, runs(inputs, inputs // groups))",
        "found.size",
        (f"{_RECORDED}[gptq, by activations]", f"{_READ}[packed, by activations]"),
    ),
    Mutant(
        "an index that was never set puts all inputs in one group",
        f"{_Q}/gptq.py",
        'and (groups == 1 or module.read("g_idx").any())',
        "",
        (f"{_READ}[gptq, index of zeros]",),
    ),
    Mutant(
        "AWQ's outputs are read in the order in which they are packed",
        f"{_Q}/awq.py",
        "numbers[..., np.argsort(_ORDER)]",
        "numbers",
        (f"{_RECORDED}[awq]", f"{_READ}[awq]"),
    ),
    Mutant(
        "AWQ's order is taken for its inverse",
        f"{_Q}/awq.py",
        "np.argsort(_ORDER)",
        "_ORDER",
        (f"{_RECORDED}[awq]", f"{_READ}[awq]"),
    ),
    Mutant(
        "the high half of a byte comes first",
        f"{_Q}/packing.py",
        "np.stack((octets & 15, octets >> 4)",
        "np.stack((octets >> 4, octets & 15)",
        (f"{_RECORDED}[compressed-tensors, packed, 4 bits]", f"{_READ}[packed]"),
    ),
    Mutant(
        "packed zeros are read along the groups",
        f"{_Q}/compressed.py",
        "center(unpack(zero.T, bits)[:, :outputs], bits).T",
        "center(unpack(zero, bits).reshape(-1, outputs)[:groups], bits).T",
        (f"{_READ}[packed, zeros]",),
    ),
    Mutant(
        "scales go with outputs in blocks that are too small",
        f"{_Q}/scaled.py",
        "np.repeat(x, block[0], axis=0)[:outputs]",
        "np.tile(x, (block[0], 1))[:outputs]",
        (f"{_RECORDED}[fp8, blocks]", f"{_READ}[fp8]"),
    ),
    Mutant(
        "the scale is that of the next group",
        "families/grouped.py",
        "groups *= self.scale.astype(np.float32)[..., None]",
        "groups *= np.roll(self.scale, 1, axis=-1).astype(np.float32)[..., None]",
        (f"{_READ}[gptq]", f"{_READ}[packed]"),
    ),
    Mutant(
        "zeros stay where they were when outputs move",
        "families/grouped.py",
        "part.zero for part in parts))",
        "part.zero[::-1] for part in parts))",
        (f"{_TESTS}::test_groups_move_as_floats_do[gptq]",),
    ),
    Mutant(
        "weights of different groups are put into one",
        "families/grouped.py",
        "part.scale.shape[-1], part.bits) for",
        "part.bits) for",
        (f"{_TESTS}::test_parts_of_different_kinds_go_together_as_floats_alone",),
    ),
    Mutant(
        "values of 4 bits are held in 8",
        "checkpoints/stored_groups.py",
        "found.bits == 8",
        "found.bits",
        ("tests/checkpoints/test_stored_groups.py::test_weights_are_held_as_they_are_stored[awq-int4-groups2-True]",),
    ),
    Mutant(
        "zeros are not held",
        "checkpoints/stored_groups.py",
        "found.scale, found.zero,",
        "found.scale, None,",
        ("tests/checkpoints/test_stored_groups.py::test_weights_are_held_as_they_are_stored[awq-int4-groups2-True]",),
    ),
    Mutant(
        "a bias is dropped whatever it holds",
        "checkpoints/fit.py",
        " or tensor.read().any()",
        "",
        (f"{_TESTS}::test_biases_of_zeros_are_no_part_of_the_model",),
    ),
    Mutant(
        "the kernels of another layout are read as they lie",
        "checkpoints/fit.py",
        "if family.inputs_first:",
        "if False:",
        (f"{_TESTS}::test_kernels_of_inputs_first_are_refused",),
    ),
)
