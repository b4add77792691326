"""The verdict: did the timed steps compute what the reference computes?

The reference is transformers' own forward pass without a cache, over the prompt and the tokens
that were decoded while the clock ran. One pass judges every timed step: each decoded token must be
the reference's first choice or nearly so, and the last step's logits must agree.
"""

import math
from typing import Any

import msgspec
import torch

from decodegap.errors import DecodegapError
from decodegap.record import Verdict


class NotFinite(DecodegapError):
    """Logits that no distance can be told of: infinite, not a number, or without any spread."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """kl_divergence in nats; gap in standard deviations of a step's logits.

    A wrong mask, position or weight makes unrelated logits: a divergence near their variance, of
    order 1, and picks some 4 deviations below the best. Rounding stays far below: in bf16, correct
    runtimes of 7B and 8B shapes part by at most 7e-3 nats, and as the best few logits of random
    weights lie a rounding step of 0.03 deviations apart, they picked up to 0.24 below the best
    (results/h200).
    """

    kl_divergence: float
    gap: float


TOLERANCES = {
    "bf16": Tolerance(kl_divergence=2e-2, gap=0.5),
    "fp16": Tolerance(kl_divergence=5e-3, gap=0.05),
    "fp32": Tolerance(kl_divergence=1e-4, gap=0.01),
}

REFERENCE = "transformers forward without a cache, same weights and prompt"


def judge(
    model: Any, prompt: torch.Tensor, decoded: list[int], last_logits: torch.Tensor, fmt: str
) -> Verdict:
    """Compare against the reference model.

    prompt: int64 [1, context]. decoded: the token each step decoded, then the last step's pick,
    so one more than there were steps. last_logits: [vocab], of the last step.
    """
    num_steps = len(decoded) - 1
    tokens = torch.tensor([decoded[:-1]], dtype=prompt.dtype, device=prompt.device)
    sequence = torch.cat((prompt, tokens), dim=1)
    with torch.inference_mode():
        logits = model(sequence, use_cache=False, logits_to_keep=num_steps + 1).logits[0].float()
    picks = torch.tensor(decoded, device=prompt.device)
    return compare(logits, picks, last_logits.float(), TOLERANCES[fmt], tuple(decoded))


def compare(
    reference: torch.Tensor,
    picks: torch.Tensor,
    last_logits: torch.Tensor,
    tolerance: Tolerance,
    decoded: tuple[int, ...],
) -> Verdict:
    """Judge picks [n] and the last step's logits [vocab] against reference logits [n, vocab].

    Raises:
        NotFinite: there is no distance between them.
    """
    chosen = reference.gather(1, picks[:, None])[:, 0]
    gaps = (reference.amax(1) - chosen) / reference.std(1)
    divergence = torch.nn.functional.kl_div(
        last_logits.log_softmax(0), reference[-1].log_softmax(0), log_target=True, reduction="sum"
    )
    kl, worst_gap = divergence.item(), gaps.max().item()
    if not (math.isfinite(kl) and math.isfinite(worst_gap)):
        raise NotFinite("its logits or the reference's are not finite numbers, or are all equal")
    passed = kl <= tolerance.kl_divergence and worst_gap <= tolerance.gap
    return Verdict(
        passed=passed,
        kl_divergence=kl,
        top1_agreement=(picks == reference.argmax(1)).float().mean().item(),
        worst_gap=worst_gap,
        max_kl_divergence=tolerance.kl_divergence,
        max_gap=tolerance.gap,
        reference=REFERENCE,
        decoded_tokens=decoded,
    )
