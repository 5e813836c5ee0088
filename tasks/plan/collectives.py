"""How long messages between ranks take: a latency, and what each rank sends over the bandwidth of its links.

Within a scale-up domain all links of a device count; a group that spans domains goes over the devices' own links
between them. Thakur, Rabenseifner and Gropp 2005 (10.1177/1094342005051521) for the ring algorithms' volumes.
"""

from __future__ import annotations

from typing import Literal

from day0.architecture.work import Collective
from day0.target import Target
from tasks.plan.figures import Figures

#: How tokens get to the ranks of their experts. `gather`: every rank gets all tokens of the group, and results are
#: added up where they belong (all-gather and reduce-scatter): the default of vLLM (0.32.0, config/parallel.py,
#: all2all_backend). `routed`: only to the ranks that have their experts, as DeepEP does.
Dispatch = Literal["gather", "routed"]


def seconds(
    message: Collective, target: Target, figures: Figures, devices: int, copies: int = 1, dispatch: Dispatch = "gather"
) -> float:
    """Of all of a step's messages of one kind. What a link whose bandwidth is not known would take is left out.

    Args:
        devices: those that the messages' group spans, or for a `send` those of all stages.
        copies: to how many ranks the bytes of an all-to-all have each token going.
    """
    spans = devices > target.scale_up
    latency = figures.scale_out_seconds if spans else figures.collective_seconds
    n, nbytes = message.ranks, message.bytes
    if message.kind == "all_reduce":  # a reduce-scatter and an all-gather
        moving = _over(2 * (n - 1) / n * nbytes, target, figures, devices)
    elif message.kind in ("all_gather", "reduce_scatter"):
        moving = _over((n - 1) * nbytes, target, figures, devices)
    elif message.kind == "all_to_all":
        own = nbytes / copies
        gathered = dispatch == "gather"
        moving = (
            _over((n - 1) * own, target, figures, devices) if gathered else _routed(n, own, copies, target, figures)
        )
        latency *= 1 if spans else 2  # counts first, then tokens
    else:
        moving = _over(nbytes, target, figures, devices)
    return message.count * (latency + moving)


def _routed(ranks: int, own: float, copies: int, target: Target, figures: Figures) -> float:
    """Tokens of `own` bytes to `copies` of the ranks. Between domains each token goes once to each domain that it is
    wanted in and is handed on there (DeepSeek-AI 2024, arXiv:2412.19437, 3.2.2), while within them others move."""
    within = _over((ranks - 1) / ranks * copies * own, target, figures, min(ranks, target.scale_up))
    domains = -(-ranks // target.scale_up)
    if domains == 1:
        return within
    wanted = min(copies, domains) * (domains - 1) / domains
    return max(within, _over(own * wanted, target, figures, ranks))


def _over(nbytes: float, target: Target, figures: Figures, devices: int) -> float:
    bandwidth = target.group_bandwidth(devices)
    return nbytes / (bandwidth * figures.link) if bandwidth else 0.0
