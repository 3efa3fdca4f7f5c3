"""Wrong options of a run raise errors before it begins."""

import dataclasses

import filelock
import numpy as np
import pytest

from jaxspec.contrib.exit_head.training import EarlyExitRecipe
from jaxspec.contrib.tandem.training import TandemRecipe
from jaxspec.heads.dflash.training import DFlashRecipe
from jaxspec.heads.eagle.training import EagleRecipe
from jaxspec.heads.medusa.training import MedusaRecipe
from jaxspec.training.loop import train
from jaxspec.training.state import TrainingOptions
from tests._fixtures import tiny
from tests._fixtures.bigram import Bigrams, Conversations

TARGET = tiny.transformer(layers=5)


@pytest.mark.parametrize(
    ("kind", "option", "value", "said"),
    [
        (EagleRecipe, "steps", 0, "at least 1"),
        (EagleRecipe, "places", 0, "at least 1"),
        (EagleRecipe, "draft_vocabulary", -4, "at least 1"),
        (EagleRecipe, "decay", 0.0, "above 0 and at most 1"),
        (EagleRecipe, "k", 0, "at least 1"),
        (DFlashRecipe, "anchor_every", 0, "at least 1"),
        (DFlashRecipe, "markov_rank", -1, "at least 0"),
        (DFlashRecipe, "decay", float("nan"), "above 0"),
        (DFlashRecipe, "k", 8, "at most block_size, 7"),
        (MedusaRecipe, "num_heads", 0, "at least 1"),
        (MedusaRecipe, "decay", -1.0, "above 0 and at most 1"),
        (EarlyExitRecipe, "places", 0, "at least 1"),
        (TandemRecipe, "decay", 2.0, "above 0 and at most 1"),
    ],
)
def test_numbers_out_of_range(kind, option, value, said):
    with pytest.raises(ValueError, match=f"{option} must be {said}, got"):
        kind.of(TARGET, **{option: value})


@pytest.mark.parametrize("capture", [(1, 99), (-1,)])
def test_layers_that_the_target_has_not(tmp_path, capture):
    with pytest.raises(ValueError, match="layers from 0 to 5 for this target"):
        train(Bigrams(capture=capture), TARGET, Conversations(), TrainingOptions(steps=1), tmp_path)


def test_data_without_answers(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Prompts(Conversations):
        def token_counts(self):
            return np.zeros(self.vocab, np.int64)

    with pytest.raises(ValueError, match="hold no answers to learn; .*--whole-texts"):
        train(Bigrams(), TARGET, Prompts(), TrainingOptions(steps=1), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_another_process_trains_in(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match="another process is writing"):
        train(Bigrams(), TARGET, Conversations(), TrainingOptions(steps=1), tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_a_run_that_cannot_begin_leaves_the_folder_to_another(tmp_path):
    recipe = EagleRecipe.of(TARGET, num_kv_heads=3)
    with pytest.raises(ValueError, match="multiple of num_kv_heads"):
        train(recipe, TARGET, Conversations(), TrainingOptions(steps=1), tmp_path)
    assert not (tmp_path / "run.json").exists()
