"""DFlash (2602.06036) and DSpark: all drafts of a round in one pass."""
