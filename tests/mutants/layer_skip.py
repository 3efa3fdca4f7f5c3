"""Faults of training whole models to exit early: which layers drop, what exits weigh, and which model is kept."""

from tests.mutants.mutant import Mutant

_RECIPE = "contrib/layer_skip.py"
_TESTS = "tests/contrib/test_layer_skip.py"
_RATES = f"{_TESTS}::test_the_last_layer_is_dropped_most"
_ROWS = f"{_TESTS}::test_rows_drop_layers_of_their_own"
_WEIGHTS = f"{_TESTS}::test_later_exits_weigh_more"
_TURNS = f"{_TESTS}::test_each_exit_has_its_turn"
_DROPPED = f"{_TESTS}::test_a_dropped_layer_passes_its_input_on"
_LOSS = f"{_TESTS}::test_the_loss_is_a_weighted_mean_over_answer_tokens"
_TRAINED = f"{_TESTS}::test_training_helps_and_the_model_gets_no_worse"
_UPDATE = "tests/training/test_loop.py::test_the_loss_knows_the_update"

MUTANTS = (
    Mutant(
        "layers are dropped at rates that grow evenly",
        _RECIPE,
        "np.expm1(np.arange(layers) * (math.log(2) / (layers - 1)))",
        "np.arange(layers) / (layers - 1)",
        (_RATES,),
    ),
    Mutant(
        "a layer is dropped for all rows of a batch or none",
        _RECIPE,
        "jax.random.uniform(key, (layers, rows), jnp.float32) >= rates[:, None]",
        "jnp.broadcast_to(jax.random.uniform(key, (layers, 1), jnp.float32) >= rates[:, None], (layers, rows))",
        (_ROWS,),
    ),
    Mutant(
        "one draw decides over all of a row's layers",
        _RECIPE,
        "jax.random.uniform(key, (layers, rows), jnp.float32) >= rates[:, None]",
        "jax.random.uniform(key, (1, rows), jnp.float32) >= rates[:, None]",
        (_ROWS,),
    ),
    Mutant(
        "dropout is at its highest from the first update on",
        _RECIPE,
        "rates = rates * growth(*moment)",
        "rates = rates * growth(moment[1], moment[1])",
        (_ROWS,),
    ),
    Mutant(
        "a dropped layer gives nothing on",
        _RECIPE,
        'run(params[f"layer_{layer}"], x), x)\n        states',
        'run(params[f"layer_{layer}"], x), 0 * x)\n        states',
        (_DROPPED,),
    ),
    Mutant(
        "early exits weigh as much as the last one",
        _RECIPE,
        "return np.append(scale * sums[:-1], layers + scale * sums[-2])",
        "return np.append(scale * sums[:-1], scale * sums[-1])",
        (_WEIGHTS,),
    ),
    Mutant(
        "weights do not sum to 1",
        _RECIPE,
        "return weights / jnp.sum(weights)",
        "return weights / jnp.sum(exit_weights(layers, self.exit_scale))",
        (_WEIGHTS,),
    ),
    Mutant(
        "the same exits are in every loss",
        _RECIPE,
        "(layer - step) % self.every == 0",
        "(layer - 0 * step) % self.every == 0",
        (_TURNS,),
    ),
    Mutant(
        "the last exit waits for its turn",
        _RECIPE,
        "% self.every == 0) | (layer == layers - 1)",
        "% self.every == 0) | (layer == layers)",
        (_TURNS,),
    ),
    Mutant(
        "exits come one after the other through all of the updates",
        _RECIPE,
        "whole, rest = steps // (2 * layers), steps % (2 * layers)",
        "whole, rest = steps // layers, steps % layers",
        (_TURNS,),
    ),
    Mutant(
        "the loss is of the token before",
        _RECIPE,
        "following = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))",
        "following = batch.tokens",
        (_LOSS,),
        slow=True,
    ),
    Mutant(
        "tokens of prompts are in the loss",
        _RECIPE,
        "return -weight * jnp.sum(jnp.where(there, _of_tokens(log_probs, tokens), 0.0))",
        "return -weight * jnp.sum(_of_tokens(log_probs, tokens))",
        (_LOSS,),
        slow=True,
    ),
    Mutant(
        "chunks weigh as those of other exits",
        _RECIPE,
        "jnp.repeat(weights, count)",
        "jnp.tile(weights, count)",
        (f"{_LOSS}[20]",),
        slow=True,
    ),
    Mutant(
        "what is reported is of the model before training",
        "training/state.py",
        "target_features(recipe, recipe.target(rounded(params, target), target), batch)",
        "target_features(recipe, target, batch)",
        (_TRAINED,),
        slow=True,
    ),
    Mutant(
        "the trained drafter is measured on the model before training",
        "training/loop.py",
        "        target = self.recipe.target(params, self.target)\n",
        "        target = self.target\n",
        (_TRAINED,),
        slow=True,
    ),
    Mutant(
        "the model is saved as it was",
        _RECIPE,
        "save(self.target(rounded(params, target), target), path)",
        "save(target, path)",
        (f"{_TESTS}::test_the_saved_model_is_the_trained_one",),
        slow=True,
    ),
    Mutant(
        "the curriculum stands still",
        "training/loop.py",
        "self.recipe.at(state.params, step, self.options.steps)",
        "self.recipe.at(state.params, 0, self.options.steps)",
        (_UPDATE,),
    ),
    Mutant(
        "options of a trained exit are taken for a whole model's, and forgotten",
        "cli/recipes.py",
        "if name not in own and given[name] is not None",
        "if name not in own and given[name] is None and not own",
        ("tests/cli/test_train.py::test_a_whole_model_has_no_exit_of_its_own",),
    ),
)
