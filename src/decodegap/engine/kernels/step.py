"""The program as kernel launches: every argument bound once, so that a step is a list of calls."""

from collections.abc import Callable
from typing import Any

import torch

from decodegap.engine.buffers import Buffers
from decodegap.engine.kernels import (
    attend,
    down_residual,
    embed,
    head,
    norm_gate_up,
    norm_qkv,
    o_residual,
)
from decodegap.engine.kernels.launch import set_shared_percent
from decodegap.engine.kernels.settings import LaunchSettings
from decodegap.engine.program import Op, Program
from decodegap.engine.weights import Weights


class KernelStep:
    """One step's launches in order. `scratch` is what only the kernels need.

    `launches` are (op name, call) pairs: `head` is two kernels, every other op one.
    """

    def __init__(
        self,
        program: Program,
        weights: Weights,
        buffers: Buffers,
        settings: LaunchSettings,
        pdl: bool,
    ) -> None:
        self.program = program
        self.settings = settings
        self.pdl = pdl
        device = buffers["hidden"].device
        self.scratch = attend.new_scratch(
            program.shape.num_kv_heads,
            program.group,
            program.shape.head_dim,
            settings.attend,
            device,
        )
        self.scratch["best"] = head.new_best(device)
        self.scratch["zero"] = torch.zeros(1, dtype=torch.int32, device=device)
        self._weights = weights
        self._buffers = buffers
        self.launches: list[tuple[str, Callable[[], None]]] = []
        for op in program.ops:
            self.launches += [(op.name, call) for call in getattr(self, f"_{op.name}")(op)]

    def run(self, without: frozenset[str] = frozenset()) -> None:
        """Launch the step on the current stream of the current device, which is to be that of the
        buffers: Triton launches there. Ops named in `without` are left out, to see what they cost;
        the result is then meaningless."""
        for name, call in self.launches:
            if name not in without:
                call()

    def run_op(self, index: int) -> None:
        """Launch the program's op number `index` alone."""
        first = sum(2 if op.name == "head" else 1 for op in self.program.ops[:index])
        count = 2 if self.program.ops[index].name == "head" else 1
        for _, call in self.launches[first : first + count]:
            call()

    def _embed(self, op: Op) -> list[Callable[[], None]]:
        table = self._weights[op.weight_name("table")]
        return [self._bind(embed.launch, "token", table, "hidden")]

    def _norm_qkv(self, op: Op) -> list[Callable[[], None]]:
        weights = self._weights
        call = self._bind(
            norm_qkv.launch,
            "hidden",
            weights[op.weight_name("norm")],
            weights[op.weight_name("weight")],
            self.scratch["zero"],
            weights.get(op.weight_name("bias")),
            "qkv",
            epsilon=self.program.shape.norm_epsilon,
            settings=self.settings.norm_qkv,
        )
        return [call]

    def _attend(self, op: Op) -> list[Callable[[], None]]:
        call = self._bind(
            attend.launch,
            "qkv",
            self._weights.get(op.weight_name("q_norm")),
            self._weights.get(op.weight_name("k_norm")),
            "position",
            "rope_cos",
            "rope_sin",
            f"keys.{op.layer}",
            f"values.{op.layer}",
            "attended",
            self.scratch,
            epsilon=self.program.shape.norm_epsilon,
            settings=self.settings.attend,
        )
        return [call]

    def _o_residual(self, op: Op) -> list[Callable[[], None]]:
        weight = self._weights[op.weight_name("weight")]
        settings, zero = self.settings.o_residual, self.scratch["zero"]
        return [
            self._bind(o_residual.launch, "attended", weight, zero, "hidden", settings=settings)
        ]

    def _norm_gate_up(self, op: Op) -> list[Callable[[], None]]:
        call = self._bind(
            norm_gate_up.launch,
            "hidden",
            self._weights[op.weight_name("norm")],
            self._weights[op.weight_name("weight")],
            self.scratch["zero"],
            "inner",
            epsilon=self.program.shape.norm_epsilon,
            settings=self.settings.norm_gate_up,
        )
        return [call]

    def _down_residual(self, op: Op) -> list[Callable[[], None]]:
        weight = self._weights[op.weight_name("weight")]
        settings, zero = self.settings.down_residual, self.scratch["zero"]
        return [
            self._bind(down_residual.launch, "inner", weight, zero, "hidden", settings=settings)
        ]

    def _head(self, op: Op) -> list[Callable[[], None]]:
        best = self.scratch["best"]
        call = self._bind(
            head.launch,
            "hidden",
            self._weights[op.weight_name("norm")],
            self._weights[self.program.head_weight],
            self.scratch["zero"],
            "logits",
            best,
            epsilon=self.program.shape.norm_epsilon,
            settings=self.settings.head,
        )
        return [call, self._bind(head.launch_pick, best, "token", "position")]

    def _bind(
        self, launch: Callable[..., Any], *arguments: object, **keywords: object
    ) -> Callable[[], None]:
        """Bind a launcher; a string argument is the name of a buffer."""
        bound = [self._buffers[a] if isinstance(a, str) else a for a in arguments]

        def call() -> None:
            compiled = launch(*bound, pdl=self.pdl, **keywords)
            set_shared_percent(compiled, self.settings.shared_percent)

        return call


def bytes_moved(
    program: Program, weights: Weights, buffers: Buffers, position: int
) -> dict[str, int]:
    """Bytes each op's kernels move in one step with `position` tokens cached, by op name."""
    totals: dict[str, int] = {}
    for op in program.ops:
        totals[op.name] = totals.get(op.name, 0) + _op_bytes(
            op, program, weights, buffers, position
        )
    return totals


def _op_bytes(op: Op, program: Program, weights: Weights, buffers: Buffers, position: int) -> int:
    if op.name == "embed":
        return embed.bytes_moved(weights[op.weight_name("table")])
    if op.name == "attend":
        norms = sum(weights[op.weight_name(part)].numel() for part in op.weights)
        keys = buffers[f"keys.{op.layer}"]
        return attend.bytes_moved(keys, position) + norms * keys.element_size()
    if op.name == "head":
        return head.bytes_moved(weights[program.head_weight])
    weight = weights[op.weight_name("weight")]
    if op.name == "norm_qkv":
        return norm_qkv.bytes_moved(weight, weights.get(op.weight_name("bias")))
    if op.name == "norm_gate_up":
        return norm_gate_up.bytes_moved(weight)
    return o_residual.bytes_moved(weight)


def supports_pdl(device: torch.device) -> bool:
    """Programmatic dependent launch came with compute capability 9.0."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


def num_sms(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def architecture(device: torch.device) -> str:
    """`sm_90`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
