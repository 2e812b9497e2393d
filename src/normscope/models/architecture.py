"""A model without its weights: the architecture that a config.json describes, built on the meta device.

Only code of the installed transformers library is used, and nothing is downloaded: see `config_rules`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.models import transformers_library as library
from normscope.models.config_rules import FLAG, ConfigError, checked_config, key_of, most_modules

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def build_architecture(config: dict[str, Any]) -> nn.Module | None:
    """The model of a config.json with its parameters on the meta device, or None if transformers does not know it.

    >>> model = build_architecture({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10})
    >>> model.h[0].ln_1.weight.is_meta
    True
    """
    if library.config_class(config.get("model_type")) is None:
        return None
    with explained(config, f"config.json does not describe a model of kind {quoted(config['model_type'])}"):
        described = described_config(config)
        build = library.model_class(described.architectures) or _bare_model
        with torch.device("meta"), _at_most(most_modules()):
            model: nn.Module = build(described)
    return model.eval().to("meta")  # some classes create a parameter on the CPU regardless


def described_config(config: dict[str, Any]) -> "PreTrainedConfig":
    """The transformers configuration of a config.json of a known kind, with the settings that describe a model."""
    settings = checked_config(config)
    found: Any = library.config_class(settings.pop("model_type"))
    described: PreTrainedConfig = found.from_dict(settings)
    checked_config(described.to_dict())  # defaults may hold names that the file does not
    return described


@contextmanager
def explained(config: dict[str, Any], failed: str) -> Iterator[None]:
    """A context for transformers code that reads a config.json: no network, and every error becomes an InputError.

    A name requested from the hub is reported with the config key that holds it, if there is one.
    """
    problem: Exception | None = None
    with library.locked() as asked:
        try:
            yield
        except Exception as error:  # a config can make transformers raise anything
            problem = error
    for name in asked:
        key = key_of(config, name)
        if key is not None:
            raise ConfigError(
                key, f"must describe a part of the model, got the name {quoted(name)}: nothing is fetched"
            )
    if isinstance(problem, ConfigError):
        raise problem
    if problem is not None:
        raise InputError(f"{failed}: {first_line(problem)}") from None


def notes_on(config: dict[str, Any]) -> tuple[str, ...]:
    """Sentences on what in a config.json is not supported: a kind or a class that transformers does not know.

    >>> notes_on({"hidden_size": 8})
    ('config.json has no model_type: norms are found by the names of tensors.',)
    """
    kind = config.get("model_type")
    if library.config_class(kind) is None:
        unknown = "has no model_type" if kind is None else f"has model_type {quoted(kind)}"
        knows = "" if kind is None else f", which {library.version()} does not know"
        code = " The code that its auto_map names is not run." if "auto_map" in config else ""
        return (f"config.json {unknown}{knows}: norms are found by the names of tensors.{code}",)
    names = config.get("architectures")
    if not names or library.model_class(names) is not None:
        return ()
    return (
        f"config.json names {quoted(names)} as its architectures, not a model of {library.version()}: "
        f"it is read as the plain model of kind {quoted(kind)}, without a head.",
    )


def stored_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Parameter of the model → its name in a checkpoint, which may be older, or saved with or without a head."""
    return library.renamed_tensors(model, names)


def _bare_model(config: "PreTrainedConfig") -> nn.Module:
    from transformers import AutoModel

    model: nn.Module = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    return model


@contextmanager
def _at_most(modules: int) -> Iterator[None]:
    """Stop building when a model has more modules than this."""
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        if count > modules:
            raise InputError(f"it must have at most {modules} modules, got more: {FLAG} allows more")

    hook: Callable[[Any, str, Any], None] = counted
    handle = register_module_module_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()
