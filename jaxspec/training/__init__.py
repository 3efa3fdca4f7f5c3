"""Training drafters: data, losses, the loop, and one recipe a kind of drafter."""
