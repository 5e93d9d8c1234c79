"""Names under which packages can be imported, and the cost of importing."""

from __future__ import annotations

import importlib
import logging

import pytest

import nixl
from conftest import run_script

SURFACE = """
create_backend register_memory deregister_memory query_memory make_connection prep_xfer_dlist estimate_xfer_cost
make_prepped_xfer initialize_xfer transfer check_xfer_state get_xfer_telemetry query_xfer_backend release_xfer_handle
release_dlist_handle prep_mem_view release_mem_view get_new_notifs update_notifs check_remote_xfer_done send_notif
get_agent_metadata get_partial_agent_metadata add_remote_agent remove_remote_agent send_local_metadata
send_partial_agent_metadata fetch_remote_metadata invalidate_local_metadata check_remote_metadata get_xfer_descs
get_reg_descs get_remote_descs get_serialized_descs deserialize_descs get_plugin_list get_plugin_mem_types
get_plugin_params get_backend_mem_types get_backend_params
""".split()
BINDINGS = """
NIXL_INIT_AGENT DEFAULT_COMM_PORT HAVE_UCX_GPU_DEVICE_API NIXL_THREAD_SYNC_NONE NIXL_THREAD_SYNC_STRICT
NIXL_THREAD_SYNC_RW NIXL_THREAD_SYNC_DEFAULT DRAM_SEG VRAM_SEG BLK_SEG OBJ_SEG FILE_SEG NIXL_READ NIXL_WRITE
NIXL_COST_ANALYTICAL_BACKEND NIXL_IN_PROG NIXL_SUCCESS nixlXferTelemetry nixlXferDList nixlRegDList nixlRemoteDList
nixlAgent nixlAgentConfig nixl_mem_t nixl_xfer_op_t nixl_cost_t nixl_status_t nixlNotPostedError
nixlInvalidParamError nixlBackendError nixlNotFoundError nixlMismatchError nixlNotAllowedError nixlRepostActiveError
nixlUnknownError nixlNotSupportedError nixlRemoteDisconnectError nixlCancelledError nixlNoTelemetryError
""".split()


@pytest.mark.parametrize("package", ["nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm"])
def test_each_package_is_the_same_one(package):
    for name in ("_api", "_bindings", "_utils", "logging"):
        assert importlib.import_module(f"{package}.{name}") is getattr(nixl, name)
    assert importlib.import_module(f"{package}._api").nixlBind is nixl.nixlBind is nixl._bindings
    module = importlib.import_module(package)
    assert module.nixl_agent is nixl.nixl_agent
    assert module.nixlXferDList is nixl._bindings.nixlXferDList


def test_its_version_is_that_of_the_interface():
    """Programs look for the distribution of the package they import, and refuse to run on one that is too old."""
    from importlib.metadata import packages_distributions, version

    for package in ("nixl", "nixl_cu12", "nixl_cu13", "nixl_rocm"):
        assert [version(name).split(".")[:3] for name in packages_distributions()[package]] == [["1", "5", "1"]]
        assert importlib.import_module(package).__version__ == "1.5.1"


def test_the_alias_may_be_imported_first():
    done = run_script("import nixl_cu12._api as a, sys; import nixl._api as b; assert a is b; print(a.nixl_agent.__name__)")
    assert (done.returncode, done.stdout) == (0, "nixl_agent\n"), done.stderr


@pytest.mark.parametrize("name", SURFACE)
def test_agent_has_each_call(name):
    assert callable(getattr(nixl.nixl_agent, name))


@pytest.mark.parametrize("name", BINDINGS)
def test_bindings_have_each_name_and_so_has_the_package(name):
    assert getattr(nixl, name) is getattr(nixl._bindings, name)


def test_importing_needs_neither_numpy_nor_torch():
    done = run_script(
        """
        import sys
        sys.modules["numpy"] = sys.modules["torch"] = None  # importing them fails
        import nixl
        agent = nixl.nixl_agent("light")
        agent.get_xfer_descs([(4096, 64, 0)], "DRAM")
        print(sorted(m for m in sys.modules if m in ("asyncio", "ctypes", "multiprocessing", "socket")))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_enumerations_are_numbers():
    bindings = nixl._bindings
    assert (bindings.NIXL_SUCCESS, bindings.NIXL_IN_PROG, bindings.nixl_status_t.NIXL_ERR_NO_TELEMETRY) == (0, 1, -12)
    assert int(bindings.FILE_SEG) == 4
    assert bindings.nixl_mem_t(1) is bindings.VRAM_SEG
    assert list(nixl.nixl_thread_sync_t)[0] is nixl.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT
    assert len(list(nixl.nixl_thread_sync_t)) == 3


def test_the_loggers_configuration_is_in_the_standard_form():
    """Programs hand NIXL's to logging.config, with handlers of theirs."""
    done = run_script(
        """
        import logging, logging.config, sys
        import nixl
        print(logging.getLogger("nixl").handlers[0].formatter._fmt == nixl.LOGGING_CONFIG["formatters"]["simpleFormatter"]["format"])
        config = {**nixl.logging.LOGGING_CONFIG, "handlers": {"consoleHandler": {
            "class": "logging.StreamHandler", "formatter": "simpleFormatter", "stream": "ext://sys.stderr"}}}
        logging.config.dictConfig(config)
        nixl.get_logger("moved").info("to stderr")
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert "NIXL INFO" in done.stderr and "to stderr" in done.stderr


def test_a_lower_level_of_the_environment_shows():
    done = run_script("import nixl; nixl.get_logger('x').debug('seen at last')", NIXL_LOG_LEVEL="DEBUG")
    assert "seen at last" in done.stdout, done.stderr


def test_the_version_of_cuda_is_found_without_importing_anything(tmp_path):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('torch was imported')")
    script = f"""
        import sys, types
        sys.path.insert(0, {str(tmp_path)!r})
        from nixl_meta_utils import detect_cuda_major
        print(detect_cuda_major())
        """
    for text, major in (
        ("cuda: Optional[str] = '13.0'\n", "13"),
        ("from typing import Optional\n__version__ = '2.9'\ncuda = \"12.6\"\n", "12"),
        ("cuda = None\nhip = '6.2'\n", "None"),
    ):
        (torch / "version.py").write_text(text)
        assert run_script(script).stdout == f"{major}\n"
    imported = """
        import sys, types
        sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(cuda="11.8"))
        from nixl_meta_utils import detect_cuda_major
        print(detect_cuda_major())
        """
    assert run_script(imported).stdout == "11\n"


@pytest.mark.parametrize("package", ["nixl_ep_cu12", "nixl_ep_cu13"])
def test_expert_parallelism_has_the_names_of_its_wheels(package):
    done = run_script(
        f"""
        import importlib
        import {package}.buffer as buffer
        import {package}, nixl_ep
        from {package}.utils import EventOverlap
        assert buffer is nixl_ep.buffer and {package} is nixl_ep and EventOverlap is nixl_ep.EventOverlap
        print(importlib.import_module("{package}").Buffer is nixl_ep.Buffer)
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_raw_memory():
    address = nixl.malloc_passthru(100)
    other = nixl.malloc_passthru(100)
    assert address % 4096 == 0
    nixl.ba_buf(address, 100)
    with pytest.raises(AssertionError):
        nixl.ba_buf(other, 99)
        nixl.verify_transfer(address, other, 100)
    nixl.verify_transfer(address, other, 99)
    nixl.free_passthru(address)
    nixl.free_passthru(other)


def test_loggers_hang_below_one(capsys):
    assert nixl.get_logger("nixl._api").name == "nixl.api"
    assert nixl.get_logger("__main__").name == "nixl.main__"
    assert logging.getLogger("nixl").propagate is False


@pytest.mark.parametrize(("level", "seen"), [("INFO", True), ("WARN", False), ("nonsense", True)])
def test_log_level_comes_from_the_environment(level, seen):
    done = run_script("import nixl; nixl.nixl_agent('logged')", NIXL_LOG_LEVEL=level)
    assert ("NIXL INFO" in done.stdout and "logged" in done.stdout) == seen
    assert ("ignored" in done.stdout) == (level == "nonsense")


def test_expert_parallelism_is_imported_without_torch_which_a_buffer_needs():
    done = run_script(
        """
        import sys
        sys.modules["torch"] = None  # importing it fails
        from nixl_ep import Buffer, Config, EventOverlap, ExpertParallelismMissing
        for mode in (False, True):
            try:
                Buffer(rank=0, low_latency_mode=mode)
                raise SystemExit("it seemed to work")
            except ImportError as error:
                assert "torch" in str(error), error
        for config in (Buffer.get_dispatch_config(8), Buffer.get_combine_config(8), Config(20, 6, 256)):
            assert isinstance(config, Config)
        assert issubclass(ExpertParallelismMissing, NotImplementedError)
        Buffer.set_num_sms(20)
        import nixl_ep.buffer, nixl_ep.utils
        assert nixl_ep.buffer.Buffer is Buffer and nixl_ep.utils.EventOverlap is EventOverlap
        print(issubclass(Buffer, object))
        """
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
