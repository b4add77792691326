"""`decodegap generate`."""

import sys
from typing import Annotated

import typer


def generate(
    model: Annotated[str, typer.Argument(help="Checkpoint folder or Hugging Face id.")],
    prompt: Annotated[str, typer.Argument(help="What to continue, or to answer with --chat.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1)] = 256,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Cache length. [default: prompt and answer]")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 leaves all tokens in.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 leaves all tokens in.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the sampling.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", "-d")] = None,
) -> None:
    """Run it fast: stream text through the engine."""
    from decodegap import generate as generation
    from decodegap.engine import Engine
    from decodegap.measure.bandwidth import local_device_with_bandwidth
    from decodegap.measure.machine import torch_device_name
    from decodegap.predict.resolve import checkpoint_folder, resolve_model

    torch_device = torch_device_name(device)
    folder = checkpoint_folder(resolve_model(model))
    tokenizer = generation.load_tokenizer(folder)
    ids = generation.encode_prompt(tokenizer, prompt, chat)
    options = generation.Options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        stop_tokens=generation.stop_tokens(tokenizer, folder),
    )
    engine = Engine.from_pretrained(
        folder, max_context=max_context or len(ids) + max_new_tokens, device=torch_device
    )
    speed = generation.stream_answer(engine, tokenizer, ids, options, _write_now)
    ended = generation.full_cache_words(speed, engine, options)
    if ended is not None:
        print(f"\n{ended}", file=sys.stderr)
    where = local_device_with_bandwidth(torch_device)
    print(f"\n\n{generation.speed_words(speed, engine.program.shape, where)}", file=sys.stderr)


def _write_now(text: str) -> None:
    print(text, end="", flush=True)
