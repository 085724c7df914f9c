"""Dicts that note which of their keys a reader looks at."""


class Watching(dict):
    """Notes every key that is asked for at each level, whether it is there or not.

    ``asked`` holds dotted keys, and is shared by all levels and by copies.
    """

    def __init__(self, values=(), prefix="", asked=None):
        self.prefix, self.asked = prefix, set() if asked is None else asked
        super().__init__(
            {
                key: Watching(value, f"{prefix}{key}.", self.asked) if isinstance(value, dict) else value
                for key, value in dict(values).items()
            }
        )

    def _note(self, key):
        self.asked.add(f"{self.prefix}{key}")

    def __getitem__(self, key):
        self._note(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self._note(key)
        return super().__contains__(key)

    def get(self, key, default=None):
        self._note(key)
        return super().get(key, default)

    def pop(self, key, *default):
        self._note(key)
        return super().pop(key, *default)

    def items(self):
        for key in self:
            self._note(key)
        return super().items()

    def keys(self):
        return Names(self)


class Names:
    """What ``keys()`` gives: a mapping for ``**``, a container for ``in``; both note what they are asked for."""

    def __init__(self, watching):
        self.watching = watching

    def __contains__(self, key):
        return key in self.watching

    def __iter__(self):
        for key in list(self.watching):
            self.watching._note(key)
            yield key

    def __len__(self):
        return len(self.watching)
