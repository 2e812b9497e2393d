"""transformer-lens: `enable_compatibility_mode()` with its defaults, as its documentation recommends."""

from folding_case import loaded, main
from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES
from transformer_lens.model_bridge import TransformerBridge


def fold(folder):
    bridge = TransformerBridge.boot_transformers(str(folder), hf_model=loaded(folder), device="cpu")
    bridge.enable_compatibility_mode()
    return lambda: (bridge.original_model, bridge.original_model)


main(fold, ["transformer-lens"], listed=SUPPORTED_ARCHITECTURES)
