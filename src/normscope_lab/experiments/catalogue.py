"""All experiments by name, imported when they are asked for."""

from importlib import import_module

from normscope.checks import quoted
from normscope.errors import InputError
from normscope_lab.engine.experiment import Experiment

_HOMES = {
    "random-keys": "random_keys:RandomKeys",
    "majority": "majority:MajorityLearned",
    "language-model": "language_model:LanguageModelScaling",
    "vit": "vit:VitGroups",
    "translation": "translation:TranslationGroups",
    "random-labels": "random_labels:RandomLabels",
    "bert-no-norm": "bert_no_norm:BertWithoutNorm",
    "majority-3d": "majority_3d:MajorityInSpace",
    "lssr": "lssr:LinearLimit",
    "capacity": "capacity_experiment:Memorised",
    "hessian": "hessian:GroupBending",
    "ellipsoid": "ellipsoid_experiment:InEllipsoid",
}


def names() -> tuple[str, ...]:
    return tuple(_HOMES)


def experiment_named(name: str) -> Experiment:
    """The experiment of that name.

    >>> experiment_named("random-keys").source
    'Brody et al. 2023, fig. 1c, 1d'
    """
    if name not in _HOMES:
        raise InputError(f"experiment must be one of {', '.join(_HOMES)}, got {quoted(name)}")
    module, kind = _HOMES[name].split(":")
    experiment: Experiment = getattr(import_module(f"normscope_lab.experiments.{module}"), kind)()
    return experiment
