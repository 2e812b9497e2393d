"""llm-compressor: `SpinQuantModifier` through `oneshot`, with --rotations its default rotations too."""

import sys

from folding_case import loaded, main, power_of_two
from llmcompressor import oneshot
from llmcompressor.modifiers.transform import SpinQuantModifier
from llmcompressor.modifiers.transform.spinquant.norm_mappings import NORM_MAPPING_REGISTRY
from loguru import logger


def fold(folder):
    logger.remove()
    logger.add(lambda message: sys.stderr.write(message.record["message"] + "\n"), level="INFO")
    model = loaded(folder)
    blocks = None if power_of_two(model) else 32  # it has no rotation of 576 channels at once
    rotated = "--rotations" in sys.argv
    recipe = SpinQuantModifier(transform_block_size=blocks) if rotated else SpinQuantModifier(rotations=[])
    oneshot(model=model, recipe=recipe, pipeline="datafree")
    return lambda: (model, model)


main(fold, ["llmcompressor", "compressed-tensors"], listed=NORM_MAPPING_REGISTRY)
