"""All uses of transformers beyond its public classes, and three locks while it works on untrusted files.

    settings   its hub client is switched off
    names      a repository requested by name is refused, even if it was downloaded to this machine before
    sockets    a connection, or a look-up of a host, is refused in this thread and in those that it starts

A blocked attempt raises `NoNetworkError`, a FileNotFoundError: whatever is not in the folder does not exist.
"""

import gc
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from torch import Tensor, nn
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
def network_allowed() -> Iterator[None]:
    """Sockets in this thread and in those that it starts, inside `no_network`: to reach a cluster that a user named."""
    thread = threading.current_thread()
    outer = _locked.pop(thread, None)
    try:
        yield
    finally:
        if outer is not None:
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
def no_collection() -> Iterator[None]:
    """Without garbage collection, which walks again and again through all that is imported or traced and stays."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
    with no_collection():
        import transformers
        import transformers.modeling_utils

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


@dataclass(frozen=True)
class Conversion:
    """One or several tensors of a model, and the tensors of a checkpoint that transformers makes them from."""

    sources: tuple[tuple[str, str], ...]  # (pattern, name in the checkpoint)
    target: str  # the first of the tensors that it makes
    converter: Any  # None for a tensor that is only renamed

    def keeps_rows(self, rows: int) -> bool:
        """Whether the tensor is one of the checkpoint as it is, so that some of its rows can be read alone."""
        return self.converter is None

    def made(self, model: "nn.Module", read: "Callable[[str], Tensor]") -> "dict[str, Tensor]":
        """The tensors of the model by name, from those of the checkpoint; any error of transformers comes through."""
        if self.converter is None:
            return {self.target: read(self.sources[0][1])}
        converter = deepcopy(self.converter)
        for pattern, name in self.sources:
            converter.add_tensor(self.target, name, pattern, partial(read, name))
        made = converter.convert(self.target, model=model, config=getattr(model, "config", None))
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def conversions(model: "nn.Module", names: Iterable[str], described: Collection[str]) -> list[Conversion]:
    """How transformers makes the tensors of a model from those of a checkpoint: renamed, merged, split or transposed.

    `described` are the names of the model's tensors that a checkpoint may hold. Tensors of the checkpoint that the
    model does not have are left out.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    transforms = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    known = dict.fromkeys(described, True)
    prefix = getattr(model, "base_model_prefix", None)
    found: dict[str, Conversion] = {}
    for name in sorted(names, key=dot_natural_key):  # the order in which experts are merged
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        if target not in known:
            continue
        if pattern is None:
            found.setdefault(target, Conversion(((name, name),), target, None))
        else:
            earlier = found.get(target)
            sources = () if earlier is None or earlier.converter is None else earlier.sources
            found[target] = Conversion((*sources, (pattern, name)), target, by_pattern[pattern])
    return list(found.values())


def reverted(model: "nn.Module", tensors: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Tensors of a model as a checkpoint holds them: merged ones split again, under the names that transformers writes.

    Any error of transformers comes through.
    """
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, tensors)  # type: ignore[arg-type, no-any-return]


def tied_names(model: "nn.Module") -> list[set[str]]:
    """Sets of names in a model that stand for one tensor once it is loaded."""
    groups: list[set[str]] = []
    for one, other in getattr(model, "all_tied_weights_keys", {}).items():
        joined = {one, other}.union(*(group for group in groups if group & {one, other}))
        groups = [group for group in groups if not group & joined] + [joined]
    return groups


def may_be_missing(model: "nn.Module", name: str) -> bool:
    """Whether transformers loads a model without a word if this tensor is not in its checkpoint."""
    patterns = getattr(model, "_keys_to_ignore_on_load_missing", None) or ()
    return any(re.search(pattern, name) for pattern in patterns)


def created_buffers(model: "nn.Module") -> "dict[str, Tensor]":
    """The buffers of a model on the meta device that no checkpoint stores, created as transformers does on loading.

    They get memory, and the modules that hold them are initialized, then those around them as long as some buffer has
    no values. The model keeps its own buffers; one that nothing initializes is left out.
    """
    import torch

    modules = dict(model.named_modules(remove_duplicate=False))
    holders = {path: module for path, module in modules.items() if module._non_persistent_buffers_set}
    before = {path: module._buffers.copy() for path, module in holders.items()}
    try:
        for path, module in holders.items():
            module._buffers |= {name: _unset(value) for name, value in _created(module, before[path])}
        with locked(), torch.no_grad():
            for path in holders:
                _initialize(modules, path)
        return {
            f"{path}.{name}" if path else name: value
            for path, module in holders.items()
            for name, value in _created(module, module._buffers)
            if not _is_unset(value)
        }
    finally:
        for path, module in holders.items():
            module._buffers |= before[path]


def _created(module: "nn.Module", buffers: "dict[str, Tensor | None]") -> "list[tuple[str, Tensor]]":
    names = module._non_persistent_buffers_set
    return [(name, value) for name, value in buffers.items() if name in names and value is not None]


def _initialize(modules: "dict[str, nn.Module]", path: str) -> None:
    """Initialize a module, then those around it while its buffers have no values, each by the model it belongs to."""
    from transformers import PreTrainedModel

    buffers = [value for _, value in _created(modules[path], modules[path]._buffers)]
    words = path.split(".") if path else []
    around = [".".join(words[:count]) for count in range(len(words), -1, -1)]
    for number, place in enumerate(around):
        owners = (modules[each] for each in around[number:] if isinstance(modules[each], PreTrainedModel))
        owner: Any = next(owners, None)
        if owner is not None:
            owner._init_weights(modules[place])
        if not any(map(_is_unset, buffers)):
            return


def _unset(like: "Tensor") -> "Tensor":
    """Memory for a buffer, with a value that no buffer has."""
    import torch

    if like.dtype == torch.bool:
        return torch.zeros_like(like, device="cpu")
    lowest = float("nan") if like.is_floating_point() or like.is_complex() else torch.iinfo(like.dtype).min
    return torch.full_like(like, lowest, device="cpu")


def _is_unset(buffer: "Tensor") -> bool:
    import torch

    if buffer.dtype == torch.bool or not buffer.numel():
        return False
    return bool((buffer.isnan() if not _is_whole(buffer) else buffer == torch.iinfo(buffer.dtype).min).all())


def _is_whole(buffer: "Tensor") -> bool:
    return not buffer.is_floating_point() and not buffer.is_complex()


def is_gguf_architecture(kind: str) -> bool:
    """Whether transformers knows how the tensors of a .gguf file with this architecture are called and ordered."""
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    aliases = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "minimax-m2": "minimax_m2", "t5encoder": "t5"}
    return aliases.get(kind, kind) in GGUF_SUPPORTED_ARCHITECTURES


def gguf_config(outline: bytes) -> dict[str, Any]:
    """The configuration of a .gguf file, from its outline: of a model that generates text, where there is one."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.models.auto import modeling_auto

    with TemporaryDirectory() as folder:
        small = Path(folder) / "outline.gguf"
        small.write_bytes(outline)
        config: dict[str, Any] = load_gguf_checkpoint(str(small), return_tensors=False)["config"]  # type: ignore[no-untyped-call]
    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"):
        if (name := getattr(modeling_auto, table).get(config.get("model_type"))) is not None:
            config.setdefault("architectures", [name])
    return config


def gguf_names(model: "nn.Module", kind: str, config: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """The processor of tensors of an architecture, and the names of tensors in the file → those in the model."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    found: Any = TENSOR_PROCESSORS.get(kind, TensorProcessor)
    processor = found(config=config)
    mapped: Any = get_gguf_hf_weights_map
    return processor, mapped(_Outline(model), processor)


class _Outline:
    """A model and its parts as `get_gguf_hf_weights_map` sees them: their parts are left out, which takes seconds."""

    def __init__(self, model: "nn.Module", deepest: bool = False) -> None:
        self._model, self._deepest = model, deepest
        self.config = getattr(model, "config", None)

    def state_dict(self) -> dict[str, Any]:
        return self._model.state_dict(keep_vars=True)

    def named_children(self) -> "list[tuple[str, _Outline]]":
        return [] if self._deepest else [(name, _Outline(part, True)) for name, part in self._model.named_children()]


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
