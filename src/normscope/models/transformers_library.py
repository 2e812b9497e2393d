"""All uses of transformers beyond its public classes, and three locks while it works on untrusted files.

    settings   its hub client is switched off
    names      a repository requested by name is refused, even if it was downloaded to this machine before
    sockets    a connection, or a look-up of a host, is refused in this thread and in those that it starts

A blocked attempt raises `NoNetworkError`, a FileNotFoundError: whatever is not in the folder does not exist.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
LOOK_UPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")
MESSAGES = ("socket.connect", "socket.sendto", "socket.sendmsg")

_locked: "WeakKeyDictionary[threading.Thread, list[str]]" = WeakKeyDictionary()  # thread → what it requested


class NoNetworkError(FileNotFoundError):
    """Something was requested that is not on this machine, or only under a name of the hub."""


class NotFollowedWarning(UserWarning):
    """A setting of a config.json is not supported; the warning says what was done instead."""


@contextmanager
def locked() -> Iterator[list[str]]:
    """The three locks around calls of transformers, without its output; blocked attempts are in the list."""
    with no_network() as asked, quiet():
        _lock_names()
        yield asked


@contextmanager
def no_network() -> Iterator[list[str]]:
    """No hub and no sockets, in this thread and in those that it starts; blocked requests are in the list.

    >>> import socket
    >>> with no_network() as asked:
    ...     socket.getaddrinfo("example.org", 443)
    Traceback (most recent call last):
    normscope.models.transformers_library.NoNetworkError: no network is used, but 'example.org' was asked for
    >>> asked
    ['example.org']
    """
    _lock_sockets()
    thread = threading.current_thread()
    outer, asked = _locked.get(thread), list[str]()
    _locked[thread] = asked
    try:
        with _hub_switched_off():
            yield asked
    finally:
        if outer is None:
            del _locked[thread]
        else:
            outer += asked
            _locked[thread] = outer


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, reports or warnings of transformers: normscope reports what matters in one line."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def as_run(model: "nn.Module") -> Iterator[None]:
    """While a model is exported, its code sees the same flags as in a plain run, and so computes the same.

    Some code has a substitute for runtimes with few operations: when exported, Qwen3-Next solves a triangular system
    by hundreds of them. Code that also checks whether it is compiled needs both flags to agree, so they stay.
    """
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    asking: list[Any] = [
        file
        for file in files
        if hasattr(file, "is_torchdynamo_exporting") and not hasattr(file, "is_torchdynamo_compiling")
    ]
    answers = [file.is_torchdynamo_exporting for file in asking]
    try:
        for file in asking:
            file.is_torchdynamo_exporting = lambda: False
        yield
    finally:
        for file, answer in zip(asking, answers, strict=True):
            file.is_torchdynamo_exporting = answer


def version() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


def config_class(kind: object) -> "type[PreTrainedConfig] | None":
    """The class of configurations with this model_type; None if there is none."""
    import transformers

    known = isinstance(kind, str) and kind in transformers.CONFIG_MAPPING
    return transformers.CONFIG_MAPPING[kind] if known else None  # type: ignore[index]


def model_class(names: object) -> "type[PreTrainedModel] | None":
    """The first class of transformers that is a whole model among the `architectures` of a config.json, if any.

    >>> model_class(["pipeline", "PreTrainedModel", "GPT2LMHeadModel"]).__name__
    'GPT2LMHeadModel'
    """
    import transformers
    from torch import nn

    for name in names if isinstance(names, list) else []:
        found: Any = getattr(transformers, name, None) if isinstance(name, str) else None
        known = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
        if known and found.forward is not nn.Module.forward:  # base classes have none
            return found  # type: ignore[no-any-return]
    return None


def is_tokenizer(name: object) -> bool:
    """Whether a name is a tokenizer of transformers, or unknown to it: transformers looks it up among all its names.

    >>> is_tokenizer("LlamaTokenizerFast"), is_tokenizer("unknown"), is_tokenizer("pipeline"), is_tokenizer(["x"])
    (True, True, False, False)
    """
    import transformers

    if not isinstance(name, str):
        return False
    tried = [getattr(transformers, end, None) for end in (name, name.removesuffix("Fast"), f"{name}Fast")]
    classes = [found for found in tried if found is not None]
    return all(isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerBase) for found in classes)


@cache
def implementations() -> frozenset[str]:
    """Ways to compute attention or experts that transformers ships; a name with a slash would be a repository."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    names = {"eager", *ALL_ATTENTION_FUNCTIONS.valid_keys(), *ALL_EXPERTS_FUNCTIONS.valid_keys()}
    return frozenset(name for name in names if "/" not in name)


@cache
def quantizers() -> frozenset[str]:
    """Kinds of quantization that transformers ships."""
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

    return frozenset(AUTO_QUANTIZATION_CONFIG_MAPPING)


@cache
def own_attributes() -> dict[str, bool]:
    """Attributes that every configuration has for its own use → whether they are methods."""
    from transformers import PreTrainedConfig

    plain = PreTrainedConfig()
    names = {*dir(PreTrainedConfig), *vars(plain)}
    methods = {name: callable(getattr(PreTrainedConfig, name, None)) for name in names}
    return {name: method for name, method in methods.items() if method or name.startswith("_")}


def renamed_tensors(model: "nn.Module", names: Iterable[str]) -> dict[str, str]:
    """Parameter of the model → its name in a checkpoint, which may be older, or saved with or without a head.

    transformers knows its own renamings: prefixes, moved modules, gamma and beta for weight and bias.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    described = dict(model.named_parameters()) | dict(model.named_buffers())
    transforms = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    prefix = getattr(model, "base_model_prefix", "") or None
    found: dict[str, str] = {}
    for name in names:
        renamed = name if name in described else rename_source_key(name, renamings, [], prefix, described)[0]
        found.setdefault(renamed, name)
    return found


@cache
def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]


@contextmanager
def _hub_switched_off() -> Iterator[None]:
    """The offline settings of huggingface_hub: read from the environment when it is imported, from a constant later."""
    before = {name: os.environ.get(name) for name in OFFLINE}
    loaded = sys.modules.get("huggingface_hub.constants")
    offline = loaded.HF_HUB_OFFLINE if loaded else any(before[name] in ("1", "ON", "YES", "TRUE") for name in before)
    os.environ.update(OFFLINE)
    if loaded:
        loaded.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if loaded := sys.modules.get("huggingface_hub.constants"):
            loaded.HF_HUB_OFFLINE = offline  # type: ignore[attr-defined]


def _refuse(what: str) -> None:
    asked = _locked.get(threading.current_thread())
    if asked is not None:
        asked.append(what)
        raise NoNetworkError(f"no network is used, but {what[:100]!r} was asked for")


@cache
def _lock_sockets() -> None:
    """Audit every socket and every new thread for the life of the process; unlocked threads are not affected."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in MESSAGES and isinstance(arguments[1], tuple):  # a text is the path of a local socket
            _refuse(str(arguments[1][0]))
        elif event in LOOK_UPS:
            _refuse(str(arguments[0]))

    start = threading.Thread.start

    def start_as_locked(self: threading.Thread) -> None:
        asked = _locked.get(threading.current_thread())
        if asked is not None:
            _locked[self] = asked
        start(self)

    sys.addaudithook(hear)
    threading.Thread.start = start_as_locked  # type: ignore[method-assign]


@cache
def _lock_names() -> None:
    """Block the check of a repository name that every function of huggingface_hub makes."""
    from huggingface_hub.utils import _validators

    check: Callable[[Any], None] = _validators.validate_repo_id

    def refuse_or_check(repo_id: Any) -> None:
        if repo_id is not None:
            _refuse(str(repo_id))
        check(repo_id)

    _validators.validate_repo_id = refuse_or_check
