"""One file a model family: its configuration, and the names of its tensors in each kind of checkpoint."""
