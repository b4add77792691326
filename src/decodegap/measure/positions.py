"""How many steps a trial decodes, and so which contexts a model and a process can take.

Loads no torch: a plan is refused by these numbers before anything runs. The parts of a worker take
theirs from here.
"""

from collections.abc import Sequence
from itertools import pairwise

from decodegap.errors import BadContext
from decodegap.predict.model import ModelShape
from decodegap.predict.traffic import check_context

# Each of the two timers beside `wall` takes as many steps as half a second holds, within bounds.
NUM_OTHER_TIMERS = 2
LEAST_TIMER_STEPS, MOST_TIMER_STEPS = 5, 20
# The one intervention of each kind of device that decodes on with the trial's own cache:
# `no_attention` on a CPU, `in_turn` on a GPU.
PROBE_WARMUP, PROBE_STEPS = 2, 10
# Under the profiler, after those that its start takes.
NUM_TRACER_STEPS, NUM_PROFILED = 1, 3

# Positions that a cache allocated once has for the steps after the timed ones. No fewer than
# `steps_after`, and few, since attention over a static cache reads what is allocated: 64 is 3 % at
# context 2048.
SPARE_POSITIONS = 64


def steps_after(device: str) -> int:
    """The most steps that a trial on `device` decodes on its own cache after the timed ones: the
    other timers, which are a GPU's, an intervention, the profile."""
    timers = 0 if device == "cpu" else NUM_OTHER_TIMERS * MOST_TIMER_STEPS
    return timers + PROBE_WARMUP + PROBE_STEPS + NUM_TRACER_STEPS + NUM_PROFILED


def check_positions(shape: ModelShape, context: int, num_steps: int, device: str) -> None:
    """Refuse a context from which some step of a trial would pass the model's last position.

    num_steps: warm-up and timed ones.

    Raises:
        BadContext: with the longest context that is possible.
    """
    check_context(shape, context)
    after = steps_after(device)
    most = shape.max_context - num_steps - after
    if context > most:
        at_most = f"a context of at most {most}, or " if most > 0 else ""
        raise BadContext(
            f"context {context}, {num_steps} steps and {after} for what follows them pass the "
            f"{shape.max_context} positions of {shape.name}; {at_most}fewer --steps"
        )


def check_apart(contexts: Sequence[int], num_steps: int) -> None:
    """Contexts that one process measures must not run into each other: libraries keep plans by
    the length of the cache, and a step at a length met before is another step.

    Raises:
        BadContext: two of them are closer than the steps a trial decodes.
    """
    least = num_steps + SPARE_POSITIONS
    for low, high in pairwise(sorted(contexts)):
        if high - low < least:
            raise BadContext(
                f"contexts {low} and {high} are closer than the {least} steps that a trial "
                "decodes, and one process is to run both; give a process per trial"
            )
