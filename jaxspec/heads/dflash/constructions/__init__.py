"""Collects the constructions of a block's tree, one file each, with a row in `table.py`."""
