"""How long messages between ranks take: a latency, and what each rank sends over the bandwidth of its links.

Within a scale-up domain all links of a device count; a group that spans domains goes over the devices' own links
between them. Thakur, Rabenseifner and Gropp 2005 (10.1177/1094342005051521) for the ring algorithms' volumes.
"""

from __future__ import annotations

from day0.architecture.work import Collective
from day0.target import Target
from tasks.plan.figures import Figures


def seconds(message: Collective, target: Target, figures: Figures, devices: int, copies: int = 1) -> float:
    """Of all of a step's messages of one kind. What a link whose bandwidth is not known would take is left out.

    Args:
        devices: those that the messages' group spans, or for a `send` those of all stages.
        copies: to how many ranks each token goes, for an all-to-all; at most that many times it leaves its domain.
    """
    spans = devices > target.scale_up
    latency = figures.scale_out_seconds if spans else figures.collective_seconds
    n, nbytes = message.ranks, message.bytes
    if message.kind == "all_reduce":  # a reduce-scatter and an all-gather
        moving = _over(2 * (n - 1) / n * nbytes, target, figures, devices)
    elif message.kind in ("all_gather", "reduce_scatter"):
        moving = _over((n - 1) * nbytes, target, figures, devices)
    elif message.kind == "all_to_all":
        moving = _all_to_all(message, target, figures, devices, copies)
        latency *= 1 if spans else 2  # counts first, then tokens
    else:
        moving = _over(nbytes, target, figures, devices)
    return message.count * (latency + moving)


def _all_to_all(message: Collective, target: Target, figures: Figures, devices: int, copies: int) -> float:
    """Tokens to the ranks of their experts. Between domains each token goes once to each of the domains it is wanted
    in and is handed on there (DeepEP; DeepSeek-AI 2024, arXiv:2412.19437, 3.2.2), while within them others move."""
    within = _over((message.ranks - 1) / message.ranks * message.bytes, target, figures, min(devices, target.scale_up))
    domains = -(-devices // target.scale_up)
    if domains == 1:
        return within
    wanted = min(copies, domains) * (domains - 1) / domains
    return max(within, _over(message.bytes / copies * wanted, target, figures, devices))


def _over(nbytes: float, target: Target, figures: Figures, devices: int) -> float:
    bandwidth = target.group_bandwidth(devices)
    return nbytes / (bandwidth * figures.link) if bandwidth else 0.0
