"""The bytes one decode step must move, flow by flow, each with its reason.

A step decodes one token with `context` tokens already in the cache. Counted: every linear's
weights once with scales and zero points, norms, biases, one embedding row, the head once (also
when it is the embedding's own table), keys and values of the positions attended, keys and values
written for one position, logits written. Not counted: activations, which a cache holds, and
parameters no step reads (the rest of the embedding table, experts that are not chosen).
"""

from collections.abc import Iterator

import msgspec

from decodegap.errors import BadContext
from decodegap.predict.formats import Format
from decodegap.predict.model import ModelShape
from decodegap.predict.tensors import ParameterTensor, parameter_tensors


class Flow(msgspec.Struct, frozen=True):
    """One tensor's bytes in a step. `op` is the op that moves them."""

    op: str
    tensor: str
    bytes: int
    reason: str


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """All flows of one step of `model` at `context` in `format`."""

    model: str
    context: int
    format: str
    flows: tuple[Flow, ...]

    @property
    def bytes(self) -> int:
        return sum(flow.bytes for flow in self.flows)

    def bytes_by_op(self) -> dict[str, int]:
        """Bytes of each op, in the order of the step."""
        totals: dict[str, int] = {}
        for flow in self.flows:
            totals[flow.op] = totals.get(flow.op, 0) + flow.bytes
        return totals


def check_context(shape: ModelShape, context: int) -> None:
    """Refuse a context the model cannot have behind it when it decodes one more token.

    Raises:
        BadContext: not positive, or beyond the model's maximum.
    """
    if context < 1:
        raise BadContext(f"context must be at least 1 token, not {context}")
    if context >= shape.max_context:
        raise BadContext(
            f"context {context} leaves no position to decode in {shape.name}, whose maximum is "
            f"{shape.max_context}; at most {shape.max_context - 1}"
        )


def step_traffic(shape: ModelShape, context: int, fmt: Format) -> Traffic:
    """Count one step.

    Raises:
        BadContext: the model cannot decode at this context.
    """
    check_context(shape, context)
    flows = (*_weight_flows(shape, fmt), *_kv_flows(shape, context, fmt), _logits_flow(shape, fmt))
    return Traffic(model=shape.name, context=context, format=fmt.name, flows=flows)


def published_bytes(shape: ModelShape, context: int, fmt: Format) -> int:
    """The reference study's count: every parameter, plus keys and values of `context` positions
    in every layer (arXiv 2605.30571)."""
    check_context(shape, context)
    return held_bytes(shape, context, fmt)


def parameter_bytes(shape: ModelShape, fmt: Format) -> int:
    """All parameters as stored, read in a step or not: what the device's memory must hold."""
    return sum(_stored_bytes(tensor, fmt) for tensor in parameter_tensors(shape))


def held_bytes(shape: ModelShape, context: int, fmt: Format) -> int:
    """All weights and a cache of `context` positions: what a device must hold at least."""
    return parameter_bytes(shape, fmt) + context * shape.num_layers * _kv_bytes(shape, fmt)


def _kv_bytes(shape: ModelShape, fmt: Format) -> int:
    """Keys and values of one position in one layer, in the type beside the packed weights."""
    return 2 * shape.kv_size * fmt.plain_bytes


def attended_positions(shape: ModelShape, layer: int, context: int) -> int:
    """Cached positions layer `layer` reads. A window of w sees the new token and w − 1 before."""
    window = shape.attention_windows[layer] if shape.attention_windows else None
    return context if window is None else min(context, window - 1)


def _stored_bytes(tensor: ParameterTensor, fmt: Format) -> int:
    packed = tensor.kind == "linear" and (tensor.layer is not None or fmt.packs_head)
    if not packed:
        return tensor.num_elements * fmt.plain_bytes
    out, into = tensor.shape
    return fmt.linear_bytes(out, into)


def _weight_flows(shape: ModelShape, fmt: Format) -> Iterator[Flow]:
    for tensor in parameter_tensors(shape):
        if tensor.kind == "embedding":
            row = shape.hidden_size * fmt.plain_bytes
            yield Flow("embed", tensor.name, row, "one row: the token's")
        elif tensor.expert is not None and tensor.expert >= shape.num_active_experts:
            continue  # which experts are chosen varies; how many does not
        else:
            yield Flow(tensor.op, tensor.name, _stored_bytes(tensor, fmt), _reason(tensor, shape))
    if shape.tied_head:
        # The embedding's table is read whole as the head; a packed head would be a second copy.
        table = shape.vocab_size * shape.hidden_size * fmt.plain_bytes
        yield Flow("head", "model.embed_tokens.weight", table, "tied head: the whole table, once")


def _reason(tensor: ParameterTensor, shape: ModelShape) -> str:
    if tensor.expert is not None:
        return f"expert {tensor.expert + 1} of the {shape.num_active_experts} active"
    return {"linear": "weights, once", "norm": "norm weights", "bias": "bias"}[tensor.kind]


def _kv_flows(shape: ModelShape, context: int, fmt: Format) -> Iterator[Flow]:
    per_position = _kv_bytes(shape, fmt)
    for layer in range(shape.num_layers):
        positions = attended_positions(shape, layer, context)
        windowed = positions < context
        reason = f"keys and values of {positions} positions" + (" (window)" if windowed else "")
        name = f"kv_cache.{layer}"
        yield Flow("attend", name, positions * per_position, reason)
        yield Flow("attend", name, per_position, "keys and values written for one position")


def _logits_flow(shape: ModelShape, fmt: Format) -> Flow:
    return Flow("head", "logits", shape.vocab_size * fmt.plain_bytes, "logits written")
