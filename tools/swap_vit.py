"""A small ViT on CIFAR-10, its LayerNorms swapped for LN-G in g groups: H before and after training, accuracy after.

    python tools/swap_vit.py cifar10.npz docs/results/swap-vit.json        # about 80 s for each training

The first file has the arrays x_train, y_train, x_test and y_test; images are (n, 32, 32, 3), uint8. Every number of
groups starts from the same weights and sees the same batches, for each of some seeds. The second file is written after
each training: called again, the tool resumes, and prints the table of docs/lng.md.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import normscope

WIDTH, LAYERS, HEADS, PATCH = 96, 4, 4, 8
GROUPS = (1, 8, 16, 24)
EPOCHS, BATCH, RATE, DECAY = 8, 100, 2e-3, 0.05
SEEN = 200  # test images at which H is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    train_set, test_set = cifar10(arguments.images)
    runs = json.loads(arguments.results.read_text("utf-8"))["runs"] if arguments.results.exists() else []
    done = {(run["seed"], run["groups"]) for run in runs}
    for seed, groups in ((seed, groups) for seed in range(arguments.seeds) for groups in GROUPS):
        if (seed, groups) not in done:
            runs.append({"seed": seed, "groups": groups, **trained(seed, groups, train_set, test_set)})
            print(runs[-1], flush=True)
            arguments.results.write_text(json.dumps(stored(runs, train_set, test_set), indent=1) + "\n", "utf-8")
    print("\n".join(table(runs)))


def trained(
    seed: int, groups: int, train_set: tuple[Tensor, Tensor], test_set: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """What becomes of one ViT."""
    start = time.process_time()
    model = normscope.swap(vision_transformer(seed), groups=groups).module
    before = median_nonlinearity(model, test_set[0][:SEEN])
    loss = train(model, *train_set, seed)
    return {
        "nonlinearity_before": before,
        "nonlinearity_after": median_nonlinearity(model, test_set[0][:SEEN]),
        "training_loss": loss,
        "test_accuracy": accuracy(model, *test_set),
        "cpu_seconds": time.process_time() - start,
    }


def cifar10(path: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images, (n, 3, 32, 32) in [−1, 1], and what they show: to train with, and to test with."""
    arrays = np.load(path)
    parts = []
    for part in ("train", "test"):
        images = torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2).float() / 127.5 - 1
        parts.append((images, torch.from_numpy(arrays[f"y_{part}"]).long()))
    return parts[0], parts[1]


def vision_transformer(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    config = ViTConfig(
        image_size=32,
        patch_size=PATCH,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        num_labels=10,
        layer_norm_eps=1e-5,
    )
    return ViTForImageClassification(config)


def train(model: nn.Module, images: Tensor, labels: Tensor, seed: int) -> float:
    """Train on all images, half of them mirrored; the mean loss of the last epoch."""
    model.train()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, epochs=EPOCHS, steps_per_epoch=-(-len(images) // BATCH)
    )
    losses: list[float] = []
    for _ in range(EPOCHS):
        losses.clear()
        for batch in torch.randperm(len(images), generator=generator).split(BATCH):
            mirrored = torch.rand(len(batch), 1, 1, 1, generator=generator) < 0.5
            shown = torch.where(mirrored, images[batch].flip(-1), images[batch])
            loss = model(shown, labels=labels[batch]).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return statistics.mean(losses)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images).logits.argmax(-1) == labels).float().mean())


def median_nonlinearity(model: nn.Module, images: Tensor) -> float:
    """The median of H over all norms of the model and all their inputs."""
    model.eval()
    with torch.no_grad(), normscope.capture(model) as captured:
        model(images)
    norms = normscope.find(model)
    values = [
        normscope.capacity.nonlinearity(norms[name].norm, seen.input.flatten(0, -2))
        for name, seen in captured.norms.items()
    ]
    return float(np.median(np.concatenate(values)))


def stored(runs: list[dict], train_set: tuple[Tensor, Tensor], test_set: tuple[Tensor, Tensor]) -> dict:
    return {
        "schema_version": 1,
        "width": WIDTH,
        "layers": LAYERS,
        "patch": PATCH,
        "epochs": EPOCHS,
        "training_images": len(train_set[0]),
        "test_images": len(test_set[0]),
        "torch": torch.__version__,
        "runs": runs,
    }


def table(runs: list[dict]) -> list[str]:
    """H: medians over seeds, loss and accuracy: means; differences to one group are of the same seed, all between."""
    lines = [
        "| g | channels in a group | H before | H after | training loss | test accuracy | against g = 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    alone = {run["seed"]: run["test_accuracy"] for run in runs if run["groups"] == 1}
    for groups in GROUPS:
        rows = [run for run in runs if run["groups"] == groups]
        before, after = (statistics.median(run[f"nonlinearity_{when}"] for run in rows) for when in ("before", "after"))
        loss, right = (statistics.mean(run[name] for run in rows) for name in ("training_loss", "test_accuracy"))
        gains = sorted(100 * (run["test_accuracy"] - alone[run["seed"]]) for run in rows)
        against = f"{gains[0]:+.1f} to {gains[-1]:+.1f}" if groups > 1 else ""
        lines.append(
            f"| {groups} | {WIDTH // groups} | {before:.2g} | {after:.2g} | {loss:.3f} | {right:.1%} | {against} |"
        )
    return lines


if __name__ == "__main__":
    main()
