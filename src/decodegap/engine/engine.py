"""`Engine`: a model with its cache, ready to decode one stream.

On a CUDA GPU a step is one replay of a captured graph of Triton kernels; anywhere else the plain
torch reference runs the same program. `engine.executor` says which.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from decodegap.engine.buffers import Buffers, allocate, buffer_bytes
from decodegap.engine.executor import Executor, GraphStep, ReferenceStep, choose_executor
from decodegap.engine.prefill import prefill
from decodegap.engine.program import Program, build_program
from decodegap.engine.sampling import Sampling, sample
from decodegap.engine.weights import (
    DTYPES,
    Weights,
    check_fits,
    checkpoint_weights,
    new_bytes,
    state_weights,
    synthetic_weights,
    weight_bytes,
)
from decodegap.errors import BadConfig, BadContext, Unavailable, nearest
from decodegap.predict.model import ModelShape
from decodegap.predict.resolve import checkpoint_folder, resolve_model

STEP_TIMEOUT_SECONDS = 30.0


class Engine:
    """Weights, cache and step of one model.

    `token` (device int64 [1]) is the token the next step decodes, `logits` (device fp32 [V]) are
    those of the last step, `position` is the number of tokens in the cache.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        *,
        device: torch.device,
        dtype: torch.dtype,
        executor: Executor | None = None,
        pdl: bool | None = None,
    ) -> None:
        self.program = program
        self.weights = weights
        self.buffers: Buffers = allocate(program, dtype, device)
        # With its index: `cuda` alone is whichever GPU is current when it is asked for.
        self.device = self.buffers["token"].device
        self.position = 0
        self._num_placed = 0  # tells one stream's cache from the next one's
        self.executor = choose_executor(executor, self.device)
        self._step: GraphStep | ReferenceStep
        if self.executor == "graph":
            self._step = GraphStep(program, weights, self.buffers, self.device, pdl)
        else:
            self._step = ReferenceStep(program, weights, self.buffers)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        max_context: int | None = None,
        device: str | torch.device | None = None,
        dtype: str = "bf16",
    ) -> "Engine":
        """A checkpoint folder, or a Hugging Face id that is fetched if it is not in the cache.

        Raises:
            UnknownModel, BadConfig, BadContext, BadCheckpoint, DoesNotFit, Unavailable.
        """
        source = resolve_model(str(model))
        program, where, torch_dtype = _prepare(source.shape, max_context, device, dtype)
        _check_memory(program, weight_bytes(program, torch_dtype), torch_dtype, where)
        weights = checkpoint_weights(program, checkpoint_folder(source), torch_dtype, where)
        return cls(program, weights, device=where, dtype=torch_dtype)

    @classmethod
    def from_state(
        cls,
        shape: ModelShape,
        state: Mapping[str, torch.Tensor],
        *,
        max_context: int | None = None,
        device: str | torch.device | None = None,
        dtype: str = "bf16",
    ) -> "Engine":
        """A transformers model's `state_dict()`. What is not stacked shares its memory.

        Raises:
            BadConfig, BadContext, BadCheckpoint, DoesNotFit, Unavailable.
        """
        program, where, torch_dtype = _prepare(shape, max_context, device, dtype)
        _check_memory(program, new_bytes(program, state, torch_dtype, where), torch_dtype, where)
        weights = state_weights(program, state, torch_dtype, where)
        return cls(program, weights, device=where, dtype=torch_dtype)

    @classmethod
    def synthetic(
        cls,
        shape: ModelShape,
        *,
        max_context: int | None = None,
        device: str | torch.device | None = None,
        dtype: str = "bf16",
        seed: int = 0,
    ) -> "Engine":
        """Random weights of the shape: for timing, and for tests."""
        program, where, torch_dtype = _prepare(shape, max_context, device, dtype)
        _check_memory(program, weight_bytes(program, torch_dtype), torch_dtype, where)
        weights = synthetic_weights(program, torch_dtype, where, seed)
        return cls(program, weights, device=where, dtype=torch_dtype)

    @property
    def token(self) -> torch.Tensor:
        return self.buffers["token"]

    @property
    def logits(self) -> torch.Tensor:
        return self.buffers["logits"]

    def prefill(self, ids: Sequence[int] | torch.Tensor) -> None:
        """Forget the context and read a prompt; `token` is then its greedy successor.

        All tokens but the last are read at once; the last is decoded by a step like any other, so
        that its logits are as exact as those that follow.

        Raises:
            BadContext: empty, longer than the cache, or with a token the model does not have.
        """
        given = torch.as_tensor(ids, device="cpu")
        if given.dtype.is_floating_point and given.numel():
            raise BadContext("token ids are whole numbers; these are not")
        if given.dim() > 1 and given.shape[:-1].numel() != 1:
            raise BadContext(f"one prompt at a time, not {list(given.shape)}; call once for each")
        prompt = given.to(torch.int64).reshape(-1)
        self._check_prompt(prompt)
        if len(prompt) > 1:
            prefill(self.program, self.weights, self.buffers, prompt[:-1].to(self.device))
        self.place(token=int(prompt[-1]), position=len(prompt) - 1)
        self.step()

    def place(self, *, token: int, position: int) -> None:
        """Decode `token` at `position` next, with whatever the cache holds before it."""
        if not 0 <= position < self.program.max_context:
            raise BadContext(
                f"position {position} is outside the cache's 0 … {self.program.max_context - 1}"
            )
        self._check_prompt(torch.tensor([token]))
        self.buffers["token"].fill_(token)
        self.buffers["position"].fill_(position)
        self.position = position
        self._num_placed += 1

    def step(self) -> None:
        """Decode `token` and leave its greedy successor in its place. Does not wait for a GPU.

        Raises:
            BadContext: the cache is full.
        """
        if self.position >= self.program.max_context:
            raise BadContext(
                f"the cache's {self.program.max_context} positions are used up; "
                "load the engine with a larger max_context"
            )
        self._step.run()
        self.position += 1

    def step_without(self, op: str) -> Callable[[], None]:
        """The step with one of its ops left out (or `nothing`), captured in a graph of its own:
        what it saves is what the op costs. What it computes is meaningless, and the position kept
        here is not that of the device any more: `place` or `prefill` before decoding again.

        Raises:
            Unavailable: there is no graph to leave an op out of, on a CPU.
        """
        if isinstance(self._step, ReferenceStep):
            raise Unavailable("ops can be left out of a captured graph only; use a CUDA GPU")
        return self._step.without(op)

    def generate(
        self,
        ids: Sequence[int] | torch.Tensor,
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> Iterator[int]:
        """Yield new tokens until `max_new_tokens`, a stop token (not yielded) or a full cache.

        Raises:
            BadContext: of the prompt; or the engine was given another one, or a step, meanwhile.
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        generator = torch.Generator(device=self.device).manual_seed(sampling.seed)
        self.prefill(ids)
        for produced in range(max_new_tokens):
            if not sampling.greedy:
                self.token.copy_(sample(self.logits, sampling, generator))
            self.wait()
            token = int(self.token)
            if token in stop_tokens:
                return
            before = (self._num_placed, self.position)
            yield token
            if before != (self._num_placed, self.position):
                raise BadContext(
                    "the engine decoded something else meanwhile, and its cache is no longer this "
                    "stream's; end one stream before the next, or load an engine for each"
                )
            if produced + 1 == max_new_tokens or self.position == self.program.max_context:
                return
            self.step()

    def wait(self, timeout_seconds: float = STEP_TIMEOUT_SECONDS) -> None:
        """Wait until the device has done all steps asked for.

        Raises:
            Unavailable: it has not within `timeout_seconds`.
        """
        if self.device.type != "cuda":
            return
        with torch.cuda.device(self.device):  # the current one may be another, and idle
            done = torch.cuda.Event()
            done.record()
        deadline = time.monotonic() + timeout_seconds
        while not done.query():
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"a step did not end within {timeout_seconds:g} s on {self.device}; "
                    "the GPU hangs or is shared: end this process"
                )
            time.sleep(0)

    def memory_bytes(self) -> dict[str, int]:
        """Bytes held: weights, cache, and everything else of the step."""
        dtype = self.buffers["hidden"].dtype
        sizes = buffer_bytes(self.program, dtype)
        cache = sizes["keys"] + sizes["values"]
        return {
            "weights": weight_bytes(self.program, dtype),
            "cache": cache,
            "other": sum(sizes.values()) - cache,
        }

    def _check_prompt(self, prompt: torch.Tensor) -> None:
        vocab_size, max_context = self.program.shape.vocab_size, self.program.max_context
        if len(prompt) == 0:
            raise BadContext("the prompt is empty; give at least one token")
        if len(prompt) > max_context:
            raise BadContext(
                f"the prompt's {len(prompt)} tokens do not fit the cache's {max_context} "
                "positions; shorten it or load the engine with a larger max_context"
            )
        outside = prompt[(prompt < 0) | (prompt >= vocab_size)]
        if len(outside):
            raise BadContext(
                f"token {int(outside[0])} is outside the vocabulary's 0 … {vocab_size - 1}; "
                "use the model's own tokenizer"
            )


def _prepare(
    shape: ModelShape, max_context: int | None, device: str | torch.device | None, dtype: str
) -> tuple[Program, torch.device, torch.dtype]:
    if dtype not in DTYPES:
        raise BadConfig(f"unknown dtype {dtype!r}: {nearest(dtype, DTYPES)}")
    where = _device(device)
    return build_program(shape, max_context), where, DTYPES[dtype]


def _check_memory(
    program: Program, num_weight_bytes: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Raises DoesNotFit if the weights still to be allocated and the buffers do not fit."""
    check_fits(num_weight_bytes + sum(buffer_bytes(program, dtype).values()), device)


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise Unavailable("no CUDA GPU is visible; use device='cpu' or check the driver")
    return where
