"""``tf.compat.v2``: ``stratagem`` itself, for ``import stratagem.compat.v2 as tf``."""

import sys

import stratagem

sys.modules[__name__] = stratagem
