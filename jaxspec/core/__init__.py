"""What travels through the loop, and the arithmetic of it: knows no Flax, no drafter and no verifier."""
