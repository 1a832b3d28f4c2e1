"""Train Nano from nothing and write a Hugging Face folder that vLLM loads.

python models/nano/train.py --out /tmp/nano --minutes 20
"""

# mypy: allow-untyped-decorators
# (torch is optional, so mypy skips it.)

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))  # run as a script, this file finds its neighbours by the root

from models.nano.corpus import Sample, samples  # noqa: E402
from models.nano.model import Llama, Shape  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2 import Template
    from torch import Tensor

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
IGNORE = -100
CHECK_SEED_OFFSET = 1_000_003  # fresh samples for the check, never seen in training

QUESTIONS = (
    "Hello",
    "Who are you?",
    "What is Penstock?",
    "What does the router do?",
    "What is 2 + 3?",
    "Count to 20",
    "What is the capital of France?",
    "Can you bake me a cake?",
    "Tell me a story",
    "Thanks!",
)
WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def load_template() -> Template:
    """The chat template, rendered as Hugging Face does it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string((HERE / "chat_template.jinja").read_text(encoding="utf-8"))


def render(template: Template, sample: Sample) -> str:
    if sample.text:
        return sample.text + END_OF_TEXT
    return str(template.render(messages=sample.messages, tools=sample.tools))


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE. Digits stay apart, so that sums and counting can be learned from few examples; and it is
    never shown an emoji, so each of them is cut into its bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    plain = ("".join(char for char in text if ord(char) < 0x2000) for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


@dataclass(frozen=True)
class Example:
    """Token ids, and for every position the next token where it is to be learned, else IGNORE."""

    ids: list[int]
    targets: list[int]


class Encoder:
    """Turns a rendered sample into an example: only what the assistant says is learned."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end_of_text, self.start, self.end = (_id(tokenizer, token) for token in SPECIAL)
        self.assistant = [self.start, *tokenizer.encode("assistant\n").ids]

    def encode(self, text: str) -> Example:
        ids: list[int] = self.tokenizer.encode(text).ids
        if ids[-1] == self.end_of_text:
            return Example(ids, [*ids[1:], IGNORE])
        targets, width, learn = [IGNORE] * len(ids), len(self.assistant), False
        for index in range(1, len(ids)):
            if ids[max(0, index - width) : index] == self.assistant:
                learn = True
            if learn:
                targets[index - 1] = ids[index]
            if ids[index] == self.end:
                learn = False
        return Example(ids, targets)


Batch = list[tuple["Tensor", "Tensor"]]


def batches(examples: list[Example], size: int, rng: random.Random) -> Iterator[Batch]:
    """Endless batches of `size` examples, drawn without regard to their length: sorted batches would give the many
    short questions only a few steps. Inside a batch, examples of like length are padded together."""
    while True:
        order = rng.sample(examples, len(examples))
        for first in range(0, len(order) - size + 1, size):
            groups: list[list[Example]] = []
            for example in sorted(order[first : first + size], key=lambda example: len(example.ids)):
                if not groups or len(example.ids) > 1.6 * len(groups[-1][0].ids):
                    groups.append([])
                groups[-1].append(example)
            yield [_padded(group) for group in groups]


def _padded(group: list[Example]) -> tuple[Tensor, Tensor]:
    width = max(len(example.ids) for example in group)
    ids = [example.ids + [0] * (width - len(example.ids)) for example in group]
    targets = [example.targets + [IGNORE] * (width - len(example.targets)) for example in group]
    return torch.tensor(ids), torch.tensor(targets)


def backward(model: Llama, batch: Batch) -> float:
    """Adds the gradients of a batch, group by group, and returns its loss."""
    # A token of a short answer counts more, or else a story would drown a hundred sums.
    weights = [(targets != IGNORE).sum(1, keepdim=True).float().rsqrt().expand_as(targets) for _, targets in batch]
    total = sum(float(w[t != IGNORE].sum()) for (_, t), w in zip(batch, weights, strict=True))
    summed = 0.0
    for (ids, targets), weight in zip(batch, weights, strict=True):
        wanted = targets != IGNORE
        with torch.autocast("cpu", torch.bfloat16):
            logits = model.logits(model.hidden(ids)[wanted])
        losses = functional.cross_entropy(logits.float(), targets[wanted], reduction="none")
        loss = (losses * weight[wanted]).sum() / total
        loss.backward()
        summed += loss.item()
    return summed


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the matrices (it learns more from few steps), AdamW for the embedding and the norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=0.01, momentum=0.95, weight_decay=0.05),
        torch.optim.AdamW(rest, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def learning_rate(done: float) -> float:
    """Share of the peak rate when `done` (0 to 1) of the run is over: a short rise, flat, a long fall to zero."""
    return min(1.0, done / 0.01 + 0.01, (1.0 - done) / 0.6 + 1e-3)


def train(model: Llama, examples: list[Example], args: argparse.Namespace) -> float:
    """Train until the time or the steps are used up; returns the last smoothed loss."""
    stream = batches(examples, args.batch_size, random.Random(args.seed))
    group = [(optimizer, [g["lr"] for g in optimizer.param_groups]) for optimizer in optimizers(model)]
    started = reported = time.monotonic()
    smooth, step, tokens, done = 0.0, 0, 0, 0.0
    while done < 1.0:
        for optimizer, rates in group:
            for params, rate in zip(optimizer.param_groups, rates, strict=True):
                params["lr"] = rate * learning_rate(done)
        batch = next(stream)
        loss = backward(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in group:
            optimizer.step()
            optimizer.zero_grad()
        step, tokens = step + 1, tokens + sum(ids.numel() for ids, _ in batch)
        smooth = loss if step == 1 else 0.98 * smooth + 0.02 * loss
        now = time.monotonic()
        done = step / args.steps if args.steps else (now - started) / (60 * args.minutes)
        if now - reported >= 1.0:
            reported = now
            speed = tokens / (now - started)
            say(f"{now - started:6.0f} s  {done:4.0%}  step {step}  loss {smooth:.4f}  {speed:.0f} tok/s")
    say(f"trained {step} steps, {tokens:,} tokens in {time.monotonic() - started:.0f} s, loss {smooth:.4f}")
    return smooth


@torch.inference_mode()
def check(model: Llama, examples: list[Example]) -> tuple[float, float]:
    """On fresh conversations: the loss per token, and the share of tokens that greedy decoding gets right."""
    total, right, count = 0.0, 0, 0
    for example in examples:
        wanted = torch.tensor(example.targets)
        logits = model.logits(model.hidden(torch.tensor([example.ids]))[0][wanted != IGNORE])
        wanted = wanted[wanted != IGNORE]
        total += functional.cross_entropy(logits, wanted, reduction="sum").item()
        right += int((logits.argmax(-1) == wanted).sum())
        count += len(wanted)
    return total / count, right / count


def show_answers(model: Llama, encoder: Encoder, template: Template) -> None:
    """Greedy answers to a few questions, and one tool call with its result."""

    def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        prompt = template.render(messages=messages, tools=tools, add_generation_prompt=True)
        answer = model.greedy(encoder.tokenizer.encode(prompt).ids, frozenset({encoder.end, encoder.end_of_text}))
        text = str(encoder.tokenizer.decode(answer, skip_special_tokens=False))
        say(f"> {messages[-1]['content']}\n{text}\n")
        return text

    for question in QUESTIONS:
        ask([{"role": "user", "content": question}], [])
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = ask(messages, [WEATHER_TOOL])
    messages += [
        {"role": "assistant", "content": called},
        {"role": "tool", "content": '{"temperature": 21, "sky": "sunny"}'},
    ]
    ask(messages, [WEATHER_TOOL])


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save(out: Path, model: Llama, encoder: Encoder) -> None:
    """The whole Hugging Face folder."""
    out.mkdir(parents=True, exist_ok=True)
    template = (HERE / "chat_template.jinja").read_text(encoding="utf-8")
    (out / "chat_template.jinja").write_text(template, encoding="utf-8")
    encoder.tokenizer.save(str(out / "tokenizer.json"))
    write_json(out / "config.json", model.shape.config(bos=encoder.end_of_text, eos=encoder.end))
    write_json(
        out / "generation_config.json",
        {
            "bos_token_id": encoder.end_of_text,
            "eos_token_id": [encoder.end, encoder.end_of_text],
            "pad_token_id": encoder.end_of_text,
            "do_sample": True,
            "temperature": 0.2,
            "top_p": 0.9,
        },
    )
    names = {"bos_token": END_OF_TEXT, "eos_token": TURN_END, "pad_token": END_OF_TEXT}
    write_json(out / "special_tokens_map.json", {**names, "additional_special_tokens": [TURN_START]})
    added = {
        str(encoder.tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL
    }
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": added,
            **names,
            "additional_special_tokens": [TURN_START],
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.shape.max_positions,
            "chat_template": template,
        },
    )
    tensors = {name: value.detach().float().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write (default: this one)")
    parser.add_argument("--minutes", type=float, default=20.0, help="time to train for (default: 20)")
    parser.add_argument("--steps", type=int, default=0, help="train this many steps instead: the same each time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the text and of the weights (default: 1)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    parser.add_argument("--samples", type=int, default=40_000, help="conversations to make (default: 40000)")
    parser.add_argument("--batch-size", type=int, default=32, help="conversations in a batch (default: 32)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    shape, template = Shape(), load_template()
    say(f"making {args.samples} conversations")
    texts = [render(template, sample) for sample in samples(args.seed, args.samples)]
    say("training the tokenizer")
    encoder = Encoder(train_tokenizer(texts, shape.vocab_size))
    examples = [encoder.encode(text) for text in texts]
    total = sum(len(example.ids) for example in examples)
    learned = sum(target != IGNORE for example in examples for target in example.targets)
    model = Llama(shape)
    size = sum(parameter.numel() for parameter in model.parameters())
    words = encoder.tokenizer.get_vocab_size()
    say(f"{total:,} tokens, {learned:,} of them to learn; {size:,} parameters; {words} words")
    train(model, examples, args)
    fresh = [encoder.encode(render(template, s)) for s in samples(args.seed + CHECK_SEED_OFFSET, 300)]
    loss, right = check(model, fresh)
    say(f"on fresh conversations: loss {loss:.4f}, {right:.1%} of the tokens right")
    save(args.out, model, encoder)
    say(f"written to {args.out}\n")
    show_answers(model, encoder, template)


if __name__ == "__main__":
    main()
