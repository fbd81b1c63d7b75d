"""What a healthy fleet does not log."""

import logging

from skfleet import Fleet
from skfleet.fleet._log_filters import quiet_closing

BATCHED = logging.getLogger("distributed.batched")
CUT_OFF = "Batched Comm Closed %r"


def test_messages_that_closing_cuts_off_are_no_traceback(caplog, monkeypatch):
    """The scheduler and a worker on threads may have one for the other, which distributed logs."""
    fleet = Fleet(n_workers=1, processes=False)
    close = fleet._cluster.close

    def close_with_a_message(*args, **kwargs):
        BATCHED.info(CUT_OFF, "InProc")
        BATCHED.info("something else")
        return close(*args, **kwargs)

    monkeypatch.setattr(fleet._cluster, "close", close_with_a_message)
    with caplog.at_level(logging.INFO, "distributed.batched"):
        fleet.close()
        assert [r.getMessage() for r in caplog.records if r.name == BATCHED.name] == [
            "something else"
        ]
        caplog.clear()
        BATCHED.info(CUT_OFF, "TCP")  # of a fleet that is not being closed
    assert [r.msg for r in caplog.records] == [CUT_OFF]
    assert not BATCHED.filters


def test_filter_goes_after_an_error():
    try:
        with quiet_closing():
            raise RuntimeError
    except RuntimeError:
        assert not BATCHED.filters
