"""vLLM imports this in every rank before it builds a model there (worker_extension_cls): ranks are
processes of their own, and each needs the replaced kernels."""

import dequantized
import sharded_state

sharded_state.replace_kernels()
dequantized.install()


class Replaced:
    """Nothing: the import is what counts."""
