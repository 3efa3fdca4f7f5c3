"""Generates rollouts for reinforcement learning, for trainers such as tunix, with the tokens of plain decoding."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.rl.history import History as History
    from jaxspec.rl.rollouts import Answers as Answers, Rollouts as Rollouts
    from jaxspec.rl.skyrl import GenerateOutput as GenerateOutput, generator as generator
    from jaxspec.rl.tunix import RolloutOutput as RolloutOutput, TunixRollout as TunixRollout
