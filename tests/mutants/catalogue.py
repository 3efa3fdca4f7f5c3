"""Every mutant, from the files that list them by topic."""

from tests.mutants import (
    accelerators,
    block,
    block_drafter,
    copying,
    eagle,
    int8,
    intersection,
    medusa,
    multi_draft,
    mutants,
    parallel,
    relaxed,
    schedules,
    sharding,
    training,
    trees,
)

MUTANTS = (
    *accelerators.MUTANTS,
    *mutants.MUTANTS,
    *block.MUTANTS,
    *block_drafter.MUTANTS,
    *copying.MUTANTS,
    *eagle.MUTANTS,
    *int8.MUTANTS,
    *intersection.MUTANTS,
    *medusa.MUTANTS,
    *multi_draft.MUTANTS,
    *parallel.MUTANTS,
    *relaxed.MUTANTS,
    *schedules.MUTANTS,
    *sharding.MUTANTS,
    *training.MUTANTS,
    *trees.MUTANTS,
)
