"""The test-suite of `keras.layers.MultiHeadAttention`, run on our class.

Keras ships it in its package. It is loaded as it is, with our class in the place of its
own, and every test must pass but those of `PRIVATE`.
"""

import importlib.util
import pathlib
import types
import warnings

import keras
import pytest

from keras_seqattn.layers import MultiHeadAttention

KERAS = pathlib.Path(importlib.util.find_spec("keras").origin).parent
SUITE = KERAS / "src/layers/attention/multi_head_attention_test.py"

# What the tests read, call or override that is private to Keras's class. Most of what
# they are about is tested through public names elsewhere: in test_multi_head.py
# initializers, constraints, windows, flash attention and masks beside the causal one,
# in test_in_keras.py int8.
PRIVATE = {
    "test_initializer": "reads `_query_dense`",
    "test_mha_constraints": "reads `_query_dense`",
    "test_dtype_policy_map": "reads `_query_dense`",
    "test_quantize_int8": "reads `_query_dense`",
    "test_sliding_window_serialization": "reads `_sliding_window`",
    "test_flash_attention_with_errors": "reads `_flash_attention`",
    "test_causal_only_skipped_for_subclass": "overrides `_compute_attention`",
    "test_compute_attention_combines_causal_and_explicit_mask_fused_fallback": (
        "calls `_compute_attention`"
    ),
    "test_compute_attention_combines_causal_and_explicit_mask_manual_path": (
        "calls `_compute_attention`"
    ),
}


def keras_suite():
    """Loads Keras's tests with our class in the place of its own."""
    if not SUITE.exists():
        reason = f"keras {keras.__version__} is installed without {SUITE.name}"
        pytest.skip(reason, allow_module_level=True)
    spec = importlib.util.spec_from_file_location(SUITE.stem, SUITE)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Marks that Keras's own configuration knows.
        spec.loader.exec_module(module)
    swapped = {**vars(module.layers), "MultiHeadAttention": MultiHeadAttention}
    module.layers = types.SimpleNamespace(**swapped)
    suite = module.MultiHeadAttentionTest
    for name, reason in PRIVATE.items():
        private = pytest.mark.xfail(
            reason=reason, raises=(AttributeError, KeyError, ValueError), strict=True
        )
        private(getattr(suite, name))
    return suite


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.slow_on("tensorflow")
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
class TestKerasSuite(keras_suite()):
    def tearDown(self):
        super().tearDown()
        # Keras's own leaves flash attention demanded of every layer made after it.
        keras.src.backend.common.global_state.set_global_attribute(
            "flash_attention", None
        )


def test_flash_attention_is_left_to_the_backend():
    assert keras.config.is_flash_attention_enabled() is None
