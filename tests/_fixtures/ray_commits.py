"""A writer of Ray Data whose process dies, or waits to be killed, between the writing of a file and its commit."""

import os
import pathlib
import signal
import time

from ray.data.checkpoint.checkpoint_writer import BatchBasedCheckpointWriter

from tests._fixtures.taken import took


class DyingWriter(BatchBasedCheckpointWriter):
    """Dies while there are files `uncommitted` in a folder; after a commit, waits while there are files `waits`."""

    def __init__(self, folder: pathlib.Path, config) -> None:
        super().__init__(config)
        self.folder = folder

    def commit_checkpoint(self, pending) -> None:
        if took(self.folder, "uncommitted"):
            os.kill(os.getpid(), signal.SIGKILL)
        done = [path for path in self.folder.glob("answers.checkpoint/*") if ".pending" not in path.name]
        if done and took(self.folder, "waits"):
            (self.folder / "waiting").touch()
            time.sleep(600)
        super().commit_checkpoint(pending)
