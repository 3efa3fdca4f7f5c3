"""Faults of sharding: a vocabulary that moves between devices, and arrays that are split but cannot be."""

from tests.mutants.mutant import Mutant

_RULES, _MESHES, _LOAD, _HOSTS = (f"tests/sharding/test_{name}.py" for name in ("rules", "meshes", "load", "hosts"))
_DESCRIBE = "tests/sharding/test_multihost.py"
_TWO = f"{_HOSTS}::test_two_processes_and_then_one_is_killed"
_MOVED = f"{_MESHES}::test_the_same_tokens_and_no_vocabulary_moves"

MUTANTS = (
    Mutant(
        "a device takes other devices' experts for its own",
        "nn/experts.py",
        "outputs = jnp.where(held[..., None], outputs, 0)",
        "pass",
        ("tests/nn/test_experts.py::test_parts_of_the_experts_add_up",),
    ),
    Mutant(
        "the top tokens are looked for in the whole vocabulary at once",
        "drafters/frontier.py",
        "parts = math.gcd(vocab, _PARTS)",
        "parts = 1",
        (f"{_MOVED}[drawn tree, recursive]",),
        slow=True,
    ),
    Mutant(
        "a head's product over the target's states is whole on every device",
        "sharding/params.py",
        '("fuse", "kernel"): ("embed", "mlp")',
        '("fuse", "kernel"): (None, None)',
        (f"{_RULES}::test_a_head_s_product_over_the_target_s_states_is_split",),
    ),
    Mutant(
        "logits are gathered",
        "sharding/placement.py",
        'self.constrain(logits, ("batch", None, "vocab"))',
        'self.constrain(logits, ("batch", None, None))',
        (f"{_MOVED}[n-gram, token]",),
    ),
    Mutant(
        "of equal weights a later part's is taken for the first",
        "drafters/frontier.py",
        "jnp.sort(chosen.astype(jnp.int32), axis=-1)[..., None]",
        "chosen.astype(jnp.int32)[..., None]",
        ("tests/drafters/test_tree.py::test_of_equal_weights_the_first_are_taken",),
    ),
    Mutant(
        "an axis that does not divide is split",
        "sharding/rules.py",
        "names if names and size % pieces(mesh, names) == 0 else None",
        "names or None",
        (f"{_RULES}::test_axes_that_do_not_divide_are_whole",),
    ),
    Mutant(
        "explicit axes stay explicit inside",
        "sharding/placement.py",
        "if AxisType.Explicit in mesh.axis_types), None)",
        "if AxisType.Manual in mesh.axis_types), None)",
        (f"{_MESHES}::test_models_that_the_caller_has_split",),
        slow=True,
    ),
    Mutant(
        "results stay split",
        "decoding/generate.py",
        "arguments.placement.replicate(collect(state, arguments.room.new, one.verifier.lossless))",
        "collect(state, arguments.room.new, one.verifier.lossless)",
        (f"{_MESHES}::test_a_mesh_can_be_passed",),
    ),
    Mutant(
        "a mesh replaces the one that a model lies on",
        "sharding/params.py",
        "if node.placement.mesh != automatic(mesh):",
        "if node.placement.mesh == mesh:",
        (f"{_RULES}::test_what_does_not_fit_is_refused",),
    ),
    Mutant(
        "parameters are read onto one device",
        "checkpoints/params.py",
        "return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index].astype(dtype))",
        "return jnp.array(values, dtype=dtype)",
        (f"{_LOAD}::test_no_device_ever_holds_more_than_its_part",),
    ),
    Mutant(
        "products of one kernel share its broadcast over the rows",
        "ops/matmul.py",
        "padded, kernel = jax.lax.optimization_barrier((padded, kernel))",
        "padded = jax.lax.optimization_barrier(padded)",
        ("tests/ops/test_matmul.py::test_two_products_of_one_kernel_do_not_share_a_broadcast_of_it",),
    ),
    Mutant(
        "each process draws a seed of its own",
        "sharding/multihost.py",
        'return int.from_bytes(rows[0, :4].tobytes(), "little")',
        "return number",
        (f"{_HOSTS}::test_the_command_line",),
        slow=True,
    ),
    Mutant(
        "every process prints",
        "cli/processes.py",
        "_first_prints(jax.process_index() == 0)",
        "_first_prints(True)",
        (f"{_HOSTS}::test_the_command_line",),
        slow=True,
    ),
    Mutant(
        "nobody notices that processes pass different arguments",
        "sharding/multihost.py",
        "    if differ.any():",
        "    if differ.all():",
        (_TWO,),
        slow=True,
    ),
    Mutant(
        "drafters are not compared between processes",
        "decoding/options.py",
        '"drafter": drafter,',
        '"drafter": None,',
        (_TWO,),
        slow=True,
    ),
    Mutant(
        "a process without the table of a grammar takes no part in its error",
        "text/request.py",
        "_PROCESSORS: [type(one).__name__ for one in processors_of(policy)],",
        "_PROCESSORS: [],",
        ("tests/sharding/test_multihost.py::test_a_grammar_that_one_host_gave_up_on",),
    ),
    Mutant(
        "a process with a seed takes no part in choosing one",
        "text/request.py",
        '"seed": None if seed is None else int(seed),',
        '"seed": None,',
        (_TWO,),
        slow=True,
    ),
    Mutant(
        "only static settings are compared between processes",
        "sharding/multihost.py",
        "value, with_values and not isinstance(value, Model))",
        "value, False)",
        (f"{_DESCRIBE}::test_what_differs",),
    ),
)
