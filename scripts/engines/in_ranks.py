"""What vLLM imports in every rank before it builds a model there (worker_extension_cls): ranks are
processes of their own, to which replaced kernels have to be brought."""

import dequantized
import sharded_state

sharded_state.replace_kernels()
dequantized.install()


class Replaced:
    """Nothing: the import is what counts."""
