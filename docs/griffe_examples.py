"""Shows the sections `Example:` of docstrings as code: Griffe knows them by their plural alone."""

import re

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        """Renames it in one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
