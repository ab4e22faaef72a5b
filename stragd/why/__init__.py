"""The deep look of ``stragctl why``: two ranks side by side, from the kernel and from Python."""


class LookError(Exception):
    """No look could be taken: one line with the thing, the reason and the way out."""
