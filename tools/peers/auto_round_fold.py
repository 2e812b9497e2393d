"""auto-round: the Hadamard rotation in place, which folds norms first; with --spinquant, its offline SpinQuant."""

import sys

from auto_round.algorithms.transforms import RotationConfig, apply_rotation
from auto_round.algorithms.transforms.hadamard.inplace.model_config import MAPPING_REGISTRY
from auto_round.algorithms.transforms.spinquant import SpinQuantConfig, SpinQuantPreprocessor
from folding_case import loaded, main, power_of_two


def fold(folder):
    model = loaded(folder)
    if "--spinquant" in sys.argv:
        config = SpinQuantConfig(r1=True, r2=True, r3=False, r4=False, online_r1_rotation=False)
        model = SpinQuantPreprocessor(model, config).preprocess()
    else:
        blocks = None if power_of_two(model) else 32  # it has no rotation of 576 channels at once
        model = apply_rotation(model, RotationConfig(block_size=blocks), data_type="int")
    return lambda: (model, model)


main(fold, ["auto-round"], listed=None if "--spinquant" in sys.argv else MAPPING_REGISTRY)
