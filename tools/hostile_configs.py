"""Tries every model type of the installed transformers with hostile keys in config.json, while networks are denied.

    python tools/hostile_configs.py                      every type, every case
    python tools/hostile_configs.py detr gpt2 rag        these types

Every type is described by its own defaults, with one layer where it counts layers. Each case adds a hostile key to
that, in nested configurations too, or puts the name of a repository in place of a text or of nothing. A folder with it,
with a tokenizer_config.json that is as hostile and with one tensor is given to what all commands read models with:
`find`, `load_tokenizer` and `token_texts`, and without the tensor to `load_model`, which would fill in random weights
otherwise. Settings that all types share are replaced in gpt2 alone. Every request to a socket is recorded and
denied below everything else. A traceback is an error that the command line would not turn into one line. A type has
a limit of time and of memory.

Two counts must be 0, or the exit code is 1: attempts to connect, and tracebacks. That the cases are hostile is shown by
how many types connect when transformers alone is given the name of a backbone.
"""

import argparse
import copy
import json
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from normscope.errors import NormscopeError

EVIL, BARE = "evil-org/evil-repo", "evil-name"
SOCKETS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.sendto")
LONGEST = 600  # characters of a message, with the path of the folder
TOKENIZER = {"tokenizer_class": "AutoModel", "auto_map": {"AutoTokenizer": [f"{EVIL}--evil.Tokenizer", None]}}
LEFT_OUT = {
    "_name_or_path": EVIL,
    "name_or_path": EVIL,
    "_commit_hash": "0" * 40,
    "auto_map": {"AutoModel": f"{EVIL}--evil.Model", "AutoConfig": "evil.Config"},
    "custom_pipelines": {"evil": {"impl": "evil.Pipeline", "pt": ["AutoModel"]}},
    "transformers_weights": "../../evil.safetensors",
    "trust_remote_code": True,
    "an_unknown_key": EVIL,
    "_attn_implementation": "flash_attention_2",
}
REFUSED: dict[str, dict[str, Any]] = {
    "backbone": {
        "backbone": EVIL,
        "backbone_config": None,
        "use_timm_backbone": False,
        "use_pretrained_backbone": True,
    },
    "backbone by a bare name": {"backbone": BARE, "backbone_config": None, "use_timm_backbone": False},
    "backbone of timm": {"backbone": f"hf-hub:{EVIL}", "backbone_config": None, "use_timm_backbone": True},
    "_attn_implementation": {"_attn_implementation": EVIL},
    "attn_implementation": {"attn_implementation": f"{EVIL}@main:attention"},
    "attention of parts": {"attn_implementation": {"": "sdpa", "text_config": EVIL}},
    "experts_implementation": {"experts_implementation": EVIL},
    "quantization": {"quantization_config": {"quant_method": EVIL}},
    "method": {"get_text_config": EVIL},
    "layers": {"n_layer": 10**6, "num_hidden_layers": 10**6, "num_layers": 10**6},
}
PLAIN = ("_name_or_path", "architectures", "problem_type", "transformers_version", "dtype", "bos_token_id",
         "eos_token_id", "pad_token_id", "sep_token_id", "chunk_size_feed_forward")  # fmt: skip
INSIDE = ("left out", "backbone", "attn_implementation", "method")  # tried in every nested config, too


def main() -> int:
    options = _options()
    totals: Counter[str] = Counter()
    worker = _Worker(options.seconds, options.gigabytes)
    kinds = options.kinds or worker.ask("kinds")
    for number, kind in enumerate(kinds, start=1):
        started = time.monotonic()
        answer = worker.ask(kind)
        counts = Counter({"over time or memory": 1}) if answer is None else Counter(answer["counts"])
        totals += counts
        totals["types"] += 1
        for line in [] if answer is None else answer["lines"]:
            print(f"{kind}: {line}", flush=True)
        seconds = time.monotonic() - started
        if options.verbose or answer is None:
            print(f"{number}/{len(kinds)} {kind}: {dict(counts)} in {seconds:.1f} s", flush=True)
    worker.stop()
    import transformers

    print(f"\ntransformers {transformers.__version__}")
    for what in (
        "types", "cases", "refused", "built", "attempts to connect", "tracebacks", "over time or memory",
        "stopped by a lock", "types that connect without normscope",
    ):  # fmt: skip
        print(f"{what}: {totals[what]}")
    return int(totals["attempts to connect"] + totals["tracebacks"] > 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="model types; all, if none is given")
    parser.add_argument("--seconds", type=float, default=120, help="of processor time, for all cases of a type")
    parser.add_argument("--gigabytes", type=float, default=12, help="limit of address space")
    parser.add_argument("--verbose", action="store_true", help="a line for each type")
    return parser.parse_args()


class _Worker:
    """One process that tries one type after the other, and is started again when it takes too long or dies."""

    def __init__(self, seconds: float, gigabytes: float) -> None:
        self._limits = seconds, gigabytes
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=work, args=(there, *self._limits), daemon=True)
        self._process.start()
        there.close()

    def ask(self, question: str) -> Any:
        """The answer; None if the process ended before it gave one."""
        self._here.send(question)
        with suppress(EOFError, ConnectionError):
            return self._here.recv()
        self.stop()
        self._start()
        return None

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def work(questions: Connection, seconds: float, gigabytes: float) -> None:
    """Answers with counts for one type after the other, in a process of its own; the system ends it at its limits."""
    most = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    attempts = record_sockets()
    import transformers

    transformers.utils.logging.set_verbosity_error()
    while True:
        kind = questions.recv()
        if kind == "kinds":
            questions.send(list(transformers.CONFIG_MAPPING))
        else:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            questions.send(try_type(kind, attempts))
            signal.setitimer(signal.ITIMER_PROF, 0)


def record_sockets() -> list[str]:
    """From now on no socket of this process reaches anything; the list grows by what was tried."""
    attempts: list[str] = []

    def deny(event: str, arguments: tuple[Any, ...]) -> None:
        if event in SOCKETS and not (event == "socket.connect" and isinstance(arguments[1], (str, bytes))):
            attempts.append(f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}")
            raise OSError("networks are denied")

    sys.addaudithook(deny)
    return attempts


def try_type(kind: str, attempts: list[str], most_fields: int | None = None) -> dict[str, Any]:
    """Counts of what became of every case of a type, and a line for each that must not be."""
    counts: Counter[str] = Counter()
    lines: list[str] = []
    base = small_config(kind)
    counts["types that connect without normscope"] = int(connects_alone(base, attempts))
    for name, config in cases(base, most_fields):
        attempts.clear()
        counts["cases"] += 1
        outcome = try_config(config)
        for what, said in outcome.items():
            counts[what] += 1
            if what == "tracebacks":
                lines.append(f"{name}: {said}")
        if attempts:
            counts["attempts to connect"] += len(attempts)
            lines.append(f"{name}: {attempts[:3]}")
    return {"counts": dict(counts), "lines": lines}


def small_config(kind: str) -> dict[str, Any]:
    """The defaults of a type as they would be stored, with one layer where that makes a configuration."""
    from transformers import CONFIG_MAPPING

    try:
        plain = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    except Exception:  # some types have no defaults
        return {"model_type": kind}
    small = copy.deepcopy(plain)
    for settings in _parts(small):
        settings |= {key: 1 for key in settings if key in ("num_hidden_layers", "num_layers", "n_layer", "n_layers")}
        settings |= {key: 1 for key in settings if key.endswith(("coder_layers", "num_experts"))}
        if isinstance(settings.get("layer_types"), list):
            settings["layer_types"] = settings["layer_types"][:1]
    try:
        CONFIG_MAPPING[kind].from_dict(copy.deepcopy(small))
    except Exception:
        return plain | {"model_type": kind}
    return small | {"model_type": kind}


def connects_alone(base: dict[str, Any], attempts: list[str]) -> bool:
    """Whether transformers by itself tries to connect when it reads a config with the name of a backbone."""
    from transformers import CONFIG_MAPPING

    attempts.clear()
    with suppress(Exception):
        CONFIG_MAPPING[base["model_type"]].from_dict({**base, **REFUSED["backbone"]})
    return bool(attempts)


def cases(base: dict[str, Any], most_fields: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configs by what is hostile in them; optionally with a limit on the fields replaced one by one."""
    yield "as it is", base
    for name, settings in {"left out": LEFT_OUT, **REFUSED}.items():
        yield name, {**base, **settings}
        for number, _ in enumerate(_parts(base)):
            if number and name in INSIDE:
                inside = copy.deepcopy(base)
                list(_parts(inside))[number].update(copy.deepcopy(settings))
                yield f"{name} in part {number}", inside
    shared = () if base["model_type"] == "gpt2" else PLAIN  # what every type has is tried with one
    for place in [place for place in _replaceable(base) if place[0] not in shared][:most_fields]:
        replaced = copy.deepcopy(base)
        part: Any = replaced
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = EVIL
        yield ".".join(map(str, place)), replaced


def _parts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The config and all configs in it."""
    yield config
    for value in config.values():
        if isinstance(value, dict) and "model_type" in value:
            yield from _parts(value)


def _replaceable(config: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of texts and of nothing in a config, except in tables of words and in configs of another type."""
    from transformers import CONFIG_MAPPING

    if isinstance(config, dict) and not (place and config.get("model_type") in CONFIG_MAPPING):
        for key, value in config.items():
            if key not in ("id2label", "label2id", "model_type"):
                yield from _replaceable(value, (*place, key))
    elif place and (config is None or isinstance(config, str)):
        yield place


def try_config(config: dict[str, Any]) -> dict[str, str]:
    """What became of a folder with this config.json: refused, built or a traceback, and whether a lock stopped it."""
    import torch
    from safetensors.torch import save_file

    from normscope.models.find import find
    from normscope.models.load import load_model, load_tokenizer
    from normscope.models.token_texts import token_texts

    outcome: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
        save_file({"tensor": torch.zeros(1)}, folder / "model.safetensors")
        for what, read in {
            "find": lambda: find(folder),
            "load_tokenizer": lambda: load_tokenizer(folder),
            "token_texts": lambda: token_texts(folder, [0]),
        }.items():
            try:
                read()
                said = ""
            except (NormscopeError, OSError) as error:  # what the command line turns into one line
                said = str(error)
            except Exception as error:
                outcome["tracebacks"] = f"{what}: {type(error).__name__}: {str(error)[:200]}"
                continue
            if len(said) > LONGEST or "\n" in said.strip():
                outcome["tracebacks"] = f"{what}: a message of {len(said)} characters: {said[:200]}"
            if what == "find":
                described = "describes a norm" in said or not said
                outcome["built" if described else "refused"] = said
                if "nothing is fetched" in said or "no network" in said:
                    outcome["stopped by a lock"] = said
        (folder / "model.safetensors").unlink()
        try:
            load_model(folder)
        except (NormscopeError, OSError):
            pass
        except Exception as error:
            outcome["tracebacks"] = f"load_model: {type(error).__name__}: {str(error)[:200]}"
    return outcome


if __name__ == "__main__":
    sys.exit(main())
