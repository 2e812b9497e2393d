"""Train the small GPT that ships with the package, on public-domain text.

    python tools/train_bundled.py TEXT [--out FOLDER] [--seed 0] [--steps 6000] [--checkpoints FOLDER]

TEXT is a UTF-8 file, such as the million characters of Shakespeare known as tinyshakespeare. Its last tenth is held
out: neither tokenizer nor model learns from it, `sample.txt` is its beginning, and training.json gives the loss on it.

With --checkpoints the model is also saved before the first step, after powers of two, and at the end, to folders
step-N: `normscope reproduce norm-training --data FOLDER` shows its norms along training.

Nothing about the norms is set by hand. Gains start at 1 as usual and go where training takes them; they learn faster
than the matrices and have no weight decay.

    matrices and embeddings   learning rate r,   weight decay λ
    gains and biases          learning rate 2r,  no decay
    r: linear warm-up over the first twentieth of the steps, then half a cosine to zero
"""

import argparse
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

DATA = Path(__file__).parents[1] / "src/normscope/data"
VOCABULARY = 1024
CONTEXT = 256
BATCH = 8
LEARNING_RATE = 2e-3
VECTOR_SPEED = 2.0  # learning rate of gains and biases over that of matrices
WEIGHT_DECAY = 0.01
SAMPLE_CHARACTERS = 4000


def main() -> None:
    options = parsed()
    targets = {name: options.out / name for name in ("model", "sample.txt")}
    for target in targets.values():
        if target.exists():
            sys.exit(f"{target} must not exist yet: remove it to train anew, or give another --out")

    torch.set_num_threads(1)  # sums in a fixed order
    torch.manual_seed(options.seed)
    seen, held_out = split(options.text.read_text(encoding="utf-8"))
    tokenizer = trained_tokenizer(seen)
    model = untrained_model()
    seen_tokens, held_out_tokens = (torch.tensor(tokenizer(text)["input_ids"]) for text in (seen, held_out))
    started = time.perf_counter()

    def keep(step: int) -> None:
        if options.checkpoints and (step == options.steps or step & (step - 1) == 0):
            save(options.checkpoints / f"step-{step}", model, tokenizer, {"step": step, "seed": options.seed})

    keep(0)
    train(model, seen_tokens, held_out_tokens, options.steps, keep)
    record = {
        "command": f"python tools/train_bundled.py {options.text.name} --seed {options.seed} --steps {options.steps}",
        "text": {"file": options.text.name, "train_characters": len(seen), "held_out_characters": len(held_out)},
        "seed": options.seed,
        "steps": options.steps,
        "tokens_per_step": BATCH * CONTEXT,
        "train_tokens": len(seen_tokens),
        "held_out_tokens": len(held_out_tokens),
        "learning_rate": LEARNING_RATE,
        "learning_rate_of_gains_and_biases": LEARNING_RATE * VECTOR_SPEED,
        "weight_decay_of_matrices": WEIGHT_DECAY,
        "initial_gains": 1.0,
        "train_loss": round(mean_loss(model, seen_tokens), 4),
        "held_out_loss": round(mean_loss(model, held_out_tokens), 4),
        "loss_unit": "nats per token",
        "seconds": round(time.perf_counter() - started),
        "versions": {
            "python": platform.python_version(),
            **{library.__name__: library.__version__ for library in (torch, transformers, tokenizers)},
        },
    }

    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as staging:  # the folder is written atomically
        folder = Path(staging) / "model"
        save(folder, model, tokenizer, record)
        sample = Path(staging) / "sample.txt"
        sample.write_text(opening(held_out), encoding="utf-8")
        sample.rename(targets["sample.txt"])
        folder.rename(targets["model"])
    print(json.dumps(record, indent=2))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the small GPT that ships with the package.")
    parser.add_argument("text", type=Path, help="UTF-8 text to learn from")
    parser.add_argument("--out", type=Path, default=DATA, help="folder that gets model/ and sample.txt")
    parser.add_argument("--checkpoints", type=Path, help="folder that gets step-N/ along training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6000)
    return parser.parse_args()


def split(text: str) -> tuple[str, str]:
    """The first nine tenths, up to the end of a paragraph, and the rest."""
    cut = text.index("\n\n", len(text) * 9 // 10) + 2
    return text[:cut], text[cut:]


def opening(text: str) -> str:
    """The first paragraphs, SAMPLE_CHARACTERS or a little more."""
    return text[: text.index("\n\n", SAMPLE_CHARACTERS) + 1]


def trained_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE: every UTF-8 text can be encoded, and decodes to itself."""
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def untrained_model() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=4,
        n_head=4,
        resid_pdrop=0.0,  # the held-out loss falls to the end without it, at twice the speed
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,  # the text is one long run: no token marks a beginning or an end
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def train(
    model: GPT2LMHeadModel, seen: Tensor, held_out: Tensor, steps: int, after_step: Callable[[int], None]
) -> None:
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "lr": LEARNING_RATE * VECTOR_SPEED, "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: pace(step, steps))
    smoothed, started = math.log(VOCABULARY), time.perf_counter()
    for step, batch in enumerate(batches(seen, steps), start=1):
        model.train()
        optimizer.zero_grad()
        loss = next_token_loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        after_step(step)
        smoothed += 0.02 * (loss.item() - smoothed)
        if step % 250 == 0 or step == steps:
            elapsed = time.perf_counter() - started
            losses = f"train {smoothed:.3f}  held out {mean_loss(model, held_out):.3f}"
            left = f"{elapsed:.0f} s, {elapsed / step * (steps - step):.0f} s to go"
            print(f"step {step}/{steps}  {losses}  gains {gain_range(model)}  {left}", flush=True)


def gain_range(model: GPT2LMHeadModel) -> str:
    gains = torch.cat([module.weight for module in model.modules() if isinstance(module, nn.LayerNorm)])
    return f"{gains.min().item():.2f} to {gains.max().item():.2f}"


def pace(step: int, steps: int) -> float:
    """The share of the learning rate at a step: up linearly, then down along half a cosine."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def batches(tokens: Tensor, steps: int) -> Iterator[Tensor]:
    """Windows from random places of the text, (BATCH, CONTEXT) each."""
    offsets = torch.arange(CONTEXT)
    for _ in range(steps):
        yield tokens[torch.randint(len(tokens) - CONTEXT + 1, (BATCH, 1)) + offsets]


def next_token_loss(model: GPT2LMHeadModel, tokens: Tensor) -> Tensor:
    logits = model(tokens, use_cache=False).logits  # (batch, context, vocabulary)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: GPT2LMHeadModel, tokens: Tensor) -> float:
    """Nats per token over the whole text, in windows side by side."""
    model.eval()
    windows = tokens[: len(tokens) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    total = sum(len(part) * next_token_loss(model, part).item() for part in windows.split(64))
    return total / len(windows)


def save(folder: Path, model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, record: dict[str, Any]) -> None:
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # nothing but defaults
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    # written here because the class name that transformers 5 saves is unknown to transformers 4
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(folder / "training.json", record)
    for file in folder.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
