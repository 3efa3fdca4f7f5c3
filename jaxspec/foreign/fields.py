"""Reads the configurations of other projects field by field, each checked against a table."""

from collections.abc import Mapping
from typing import Any

from jaxspec.families.settings import Setting, SettingError, check_settings

# The dtypes of weights that can be adopted.
DTYPES = ("float32", "bfloat16", "float16")


class Fields:
    """Reads an object or a mapping; a field of the table has the type and range that the table says.

    Example:
        >>> from jaxspec.families.settings import SIZE
        >>> from jaxspec.foreign.fields import Fields
        >>> fields = Fields("MaxText", {"num_heads": 4}, {"num_heads": SIZE}, "pass another")
        >>> fields.need("num_heads"), fields.get("dtype")
        (4, None)
    """

    def __init__(self, project: str, config: Any, table: Mapping[str, Setting], advice: str):
        """Reads a configuration of `project`; `advice` ends the error about a field that is missing."""
        self._project, self._config, self._table, self._advice = project, config, table, advice

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a field; `default` if it is missing or None.

        Raises:
          SettingError: it has another type or is out of range.
        """
        config = self._config
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if value is None:
            return default
        value = getattr(value, "value", value)  # of a member of an enumeration
        known = name.removeprefix("base_")
        if known in self._table:
            check_settings({known: value}, {known: self._table[known]}, f"{self._project}'s ")
        return value

    def need(self, name: str, default: Any = None) -> Any:
        """Returns a field that must be there, unless there is a default.

        Raises:
          SettingError: it is missing, has another type or is out of range.
        """
        if (value := self.get(name, default)) is None:
            raise SettingError(name, f"the configuration of {self._project} lacks {name!r}; {self._advice}")
        return value
