"""The buffers that threads share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from day0.deadline import Deadline
from tasks.reshard.hashing import BufferPool, Control, Stopped


@pytest.fixture
def control() -> Control:
    return Control(Deadline("test", None))


def test_a_thread_gets_back_the_buffers_that_it_had(control: Control) -> None:
    pool = BufferPool(64, 4, control)
    with ThreadPoolExecutor(1) as other:
        mine = [pool.take(), pool.take()]
        others = [other.submit(pool.take).result() for _ in mine]
        for buffer in [*mine, *others]:  # those that were used last are another core's
            buffer.release()
        assert {pool.take() for _ in mine} == set(mine)
        assert {other.submit(pool.take).result() for _ in others} == set(others)


def test_a_thread_takes_another_ones_buffer_rather_than_wait(control: Control) -> None:
    pool = BufferPool(64, 1, control)
    with ThreadPoolExecutor(1) as other:
        buffer = other.submit(pool.take).result()
        buffer.release()
        assert pool.take() is buffer


def test_a_buffer_that_several_use_is_free_after_the_last(control: Control) -> None:
    pool = BufferPool(64, 1, control)
    buffer = pool.take()
    buffer.hold()
    buffer.release()
    control.stop()
    with pytest.raises(Stopped):
        pool.take()
    buffer.release()
    assert pool.take() is buffer
