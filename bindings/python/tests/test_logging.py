"""The library's log in Python's."""

from __future__ import annotations

import logging

import pytest

import towline
from conftest import TIMEOUT, Pair, run_script


@pytest.fixture
def records():
    found: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    logger, keep = logging.getLogger("towline"), Keep()
    logger.addHandler(keep)
    logger.setLevel(logging.DEBUG)
    yield found
    towline.log_to(None)
    logger.removeHandler(keep)
    logger.setLevel(logging.NOTSET)


def test_messages_come_with_their_level(make_agent, records, capfd):
    towline.log_to()
    make_agent("speaker", config={"log.level": "debug", "nobody.knows": "this"}).close()
    towline.log_to(None)  # after the last one
    (warning,) = [record for record in records if record.levelno == logging.WARNING]
    assert "nobody.knows" in warning.getMessage()
    assert {record.name for record in records} == {"towline"}
    assert {record.levelno for record in records} <= {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    assert capfd.readouterr().err == ""
    seen = len(records)
    make_agent("elsewhere", config={"log.level": "warning", "nobody.knows": "this"}).close()
    assert len(records) == seen and "nobody.knows" in capfd.readouterr().err


def test_logging_holds_up_nobody(make_agent, records):
    """A handler that uses the library, while threads that have the GIL log."""

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not pair.near.closed:
                pair.near.info()

    pair = Pair(make_agent, backends="tcp", config={"log.level": "trace"})
    handler = Calls()
    logging.getLogger("towline").addHandler(handler)
    try:
        towline.log_to("towline")
        for _ in range(20):
            pair.near.copy(pair.my_blocks, pair.their_blocks).result(TIMEOUT)
            make_agent("short", config={"log.level": "trace", "nobody.knows": "this"}).close()
        pair.near.close()
        towline.log_to(None)
    finally:
        logging.getLogger("towline").removeHandler(handler)
    assert records


def test_a_handler_that_raises_ends_nothing(make_agent, records, capfd):
    def raises(record: logging.LogRecord) -> bool:
        if "first" in record.getMessage():
            raise ValueError("of the filter")
        return True

    logger = logging.getLogger("towline")
    logger.addFilter(raises)
    try:
        towline.log_to()
        for name in ("the.first", "the.second"):
            make_agent("speaker", config={"log.level": "warning"}).close()
            with pytest.raises(towline.Error):
                make_agent("loads", config={"log.level": "warning"}).add_backend(name)
        towline.log_to(None)
    finally:
        logger.removeFilter(raises)
    assert any("the.second" in record.getMessage() for record in records)
    assert "of the filter" in capfd.readouterr().err


def test_interpreter_ends_while_it_logs_and_forks():
    done = run_script(
        """
        import logging, os, sys, towline
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(name)s %(levelname)s")
        towline.log_to()
        agent = towline.Agent("leaver", listen="127.0.0.1:0", config={"log.level": "info"})
        if (child := os.fork()) == 0:
            towline.log_to()
            towline.log_to(None)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.splitlines()) <= {"towline INFO", "towline WARNING"}
