"""A table of docs/folding.md: rewritten checkpoints in other runtimes, against the original in torch.

    pip install -c constraints.txt onnx onnxscript onnxruntime
    python tools/runtimes.py [MODEL ...]     # a minute; rewrites docs/folding.md and docs/results/runtimes.json

Each model is rewritten, written to a folder, and loaded from there by transformers; torch exports what was loaded to
ONNX, and onnxruntime runs that. Without MODEL (folders or .gguf files): tiny random models of a few architectures, and
the demo model. Differences are those of logits in float32, relative to the largest logit of the original.
"""

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tools")]
RESULTS = ROOT / "docs" / "results" / "runtimes.json"
MARKS = "<!-- runtimes: python tools/runtimes.py -->", "<!-- end of runtimes -->"
ARCHITECTURES = ("llama", "gpt2", "gemma3_text", "qwen3", "phi3")
REWRITES = {
    "none": None,
    "fold": {},
    "fold --rescale float16": {"rescale": "float16"},
    "fold --rotate hadamard --untie": {"rotate": "hadamard", "untie": True},
}
SEED, SHAPE = 0, (2, 8)


def main() -> None:
    """Measure, keep, and put the table into the page."""
    from folding_table import put

    from normscope import demo_model

    rows = []
    with tempfile.TemporaryDirectory() as made:
        given = [(Path(each).name, Path(each)) for each in sys.argv[1:]]
        for name, path in given or [*tiny_models(Path(made)), ("the demo model", demo_model())]:
            rows += rows_of(name, path)
            print(json.dumps(rows[-1]), flush=True)
    RESULTS.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    put(table(rows), *MARKS)


def tiny_models(folder: Path):
    """Random models with random gains and a huge token table, so that there is something to rescale, in folders."""
    from folding_table import HUGE

    from architectures import random_model

    for architecture in ARCHITECTURES:
        model = random_model(architecture)
        model.get_input_embeddings().weight.data *= HUGE
        model.save_pretrained(folder / architecture)
        yield type(model).__name__, folder / architecture


def rows_of(name: str, path: Path):
    """Every rewrite of one model, in both runtimes."""
    import torch

    from normscope import fold
    from normscope.errors import NormscopeError
    from normscope.models.load import load_model

    original = load_model(path)
    size = original.get_input_embeddings().weight.shape[0]
    tokens = torch.randint(3, size, SHAPE, generator=torch.Generator().manual_seed(SEED))
    reference = in_torch(original, tokens)
    for rewrite, options in REWRITES.items():
        row = {"model": name, "rewrite": rewrite}
        with tempfile.TemporaryDirectory() as folder:
            try:
                written = path if options is None else Path(folder) / "rewritten"
                if options is not None:
                    fold(path, out=written, **options)
                loaded = load_model(written)
            except NormscopeError as error:
                yield row | {"transformers": None, "onnxruntime": None, "refused": str(error)}
                continue
            row["transformers"] = difference(in_torch(loaded, tokens), reference)
            row["onnxruntime"] = difference(in_onnxruntime(loaded, tokens, Path(folder)), reference)
        yield row


def in_torch(model, tokens):
    import torch

    with torch.no_grad():
        return model(input_ids=tokens, use_cache=False).logits.numpy()


def in_onnxruntime(model, tokens, folder: Path):
    """The logits of the model, exported by torch and run by onnxruntime."""
    import onnxruntime
    import torch

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids=input_ids, use_cache=False).logits

    torch.onnx.export(Logits().eval(), (tokens,), folder / "model.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: tokens.numpy()})[0]


def difference(found, reference) -> float:
    return float(abs(found - reference).max() / abs(reference).max())


def table(rows) -> str:
    lines = ["| model | rewrite | transformers | onnxruntime |", "|---|---|---|---|"]
    for row in rows:
        figures = [
            f"{row[each]:.0e}" if row[each] is not None else "refused" for each in ("transformers", "onnxruntime")
        ]
        lines.append(f"| {row['model']} | `{row['rewrite']}` | {' | '.join(figures)} |".replace("`none`", "as it is"))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
