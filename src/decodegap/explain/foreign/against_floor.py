"""A foreign figure against the floor of one step.

Everything is rounded to the figure's favour. Where the file leaves something open, the floor is the
least it can be (and R_floor the least); where a prefill is inside, the step is the most it can be.
So "impossible" means that no reading of the file makes it possible.
"""

import msgspec

from decodegap.explain.foreign.figure import ForeignFigure
from decodegap.explain.foreign.given import Settled, is_smaller
from decodegap.predict.device import Device
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import Traffic, step_traffic
from decodegap.units import format_bandwidth

_WIDEST_EMBEDDING = 2  # bytes an element: no quantised file stores its embedding wider


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with its floor. Seconds and bytes; `context` is the mean over the steps timed.

    step_is_most: something else than steps is inside the time. floor_is_least: something that a
    step reads is left out of the count, or several devices may share it.
    """

    figure: ForeignFigure
    model: str
    device: Device
    format: str | None
    num_layers: int
    context: int
    bytes: int
    bytes_basis: str
    step: float
    step_is_most: bool
    floor: float | None
    reachable_floor: float | None
    floor_is_least: bool

    @property
    def impossible(self) -> bool:
        """The whole time would not do for one reading of the weights a step."""
        return self.floor is not None and self.step < self.floor

    @property
    def speed_text(self) -> str:
        """The bandwidth of the floor, for people."""
        assert self.device.bandwidth_bytes_per_second is not None
        times = f"{self.figure.num_devices} × " if self.figure.num_devices > 1 else ""
        return times + format_bandwidth(self.device.bandwidth_bytes_per_second)

    @property
    def r_floor(self) -> float | None:
        """Exact floor ÷ step of one stream; None for several, whose bytes are others."""
        alone = self.figure.batch == 1
        return self.floor / self.step if alone and self.floor is not None else None

    @property
    def r_floor_is_least(self) -> bool:
        return self.step_is_most or self.floor_is_least


def grade_figure(settled: Settled) -> Grade:
    """Raises BadContext: the model cannot decode at the figure's context."""
    figure, device = settled.figure, settled.device
    context = _mean_context(figure)
    num_bytes, basis, is_whole = _step_bytes(settled, context)
    return Grade(
        figure=figure,
        model=settled.shape.name,
        device=device,
        format=None if settled.format is None else settled.format.name,
        num_layers=settled.shape.num_layers,
        context=context,
        bytes=num_bytes,
        bytes_basis=basis,
        step=figure.seconds_per_step,
        step_is_most=figure.has_prefill,
        floor=_seconds(num_bytes, device.bandwidth_bytes_per_second, figure),
        reachable_floor=_seconds(num_bytes, device.reachable_bytes_per_second, figure),
        floor_is_least=not is_whole or _may_be_more(figure),
    )


def _may_be_more(figure: ForeignFigure) -> bool:
    """Whether the cache may be longer or of more streams, or the devices used fewer."""
    return figure.prompt_length is None or figure.batch != 1 or figure.num_devices > 1


def _mean_context(figure: ForeignFigure) -> int:
    """Tokens in the cache, in the mean of the steps timed and rounded down. A prompt that is not
    stated had one token at least."""
    before = 1 if figure.prompt_length is None else figure.prompt_length
    return max(1, before + (figure.num_steps - 1) // 2)


def _seconds(num_bytes: int, bandwidth: float | None, figure: ForeignFigure) -> float | None:
    return None if bandwidth is None else num_bytes / (bandwidth * figure.num_devices)


def _step_bytes(settled: Settled, context: int) -> tuple[int, str, bool]:
    """What one step moves, how that was counted, and whether it is all."""
    figure, shape, fmt = settled.figure, settled.shape, settled.format
    traffic = step_traffic(shape, context, fmt or get_format("bf16"))
    cache = 0 if figure.cache_format else _least_cache_bytes(settled, context)
    left_out = f", less the {figure.cache_format} cache" if figure.cache_format else ""
    if fmt is not None:
        weights = traffic.bytes - _cache_bytes(traffic)
        is_whole = not left_out and not is_smaller(figure, shape, fmt)
        return weights + cache, f"counted in {fmt.name}{left_out}", is_whole
    assert figure.weight_bytes is not None
    # An untied embedding is read one row a step; how it is stored the file does not say.
    table = 0 if shape.tied_head else shape.vocab_size * shape.hidden_size * _WIDEST_EMBEDDING
    basis = f"the file's size of the weights{'' if shape.tied_head else ', less the embedding'}"
    return max(0, figure.weight_bytes - table) + cache, basis + left_out, False


def _least_cache_bytes(settled: Settled, context: int) -> int:
    """Of the mean step. Where windows fill up on the way, the mean of the first and the last step
    is less than the step at the mean context, and no more than the mean of all."""
    steps, shape, bf16 = settled.figure.num_steps, settled.shape, get_format("bf16")
    first = max(1, context - (steps - 1) // 2)
    contexts = (first, first + steps - 1)
    ends = [_cache_bytes(step_traffic(shape, one, bf16)) for one in contexts]
    return min(_cache_bytes(step_traffic(shape, context, bf16)), sum(ends) // 2)


def _cache_bytes(traffic: Traffic) -> int:
    return sum(flow.bytes for flow in traffic.flows if flow.tensor.startswith("kv_cache."))
