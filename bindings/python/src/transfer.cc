// Transfers. post() and poll() are the hot path: one call of the C API and nothing else of weight.
#include <towline/gpu.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "arrays.h"

namespace towline::python {

namespace {

// The largest transfer that is posted with the GIL held: copying it takes a few microseconds.
constexpr uint64_t kQuickBytes = 64 << 10;

struct Transfer {
  nb::object agent;
  nb::object peer;
  towline_transfer_t* native = nullptr;
  uint64_t bytes = 0;
  uint64_t timeout = 0;  // 0: the agent's default
  bool posted = false;
  bool ended = false;  // the last post's outcome was seen, so that asking again is quick

  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  ~Transfer() { towline_transfer_release(native); }
  int visit(visitproc visit, void* arg) const {
    Py_VISIT(agent.ptr());
    Py_VISIT(peer.ptr());
    return 0;
  }
};

uint64_t own_timeout(const Transfer& transfer) {
  return transfer.timeout != 0 ? transfer.timeout : agent_of(transfer.agent).default_timeout;
}

std::string describe(const Transfer& transfer) {
  return "a transfer of " + std::to_string(transfer.bytes) + " bytes";
}

// The sentence that the call which has just failed left, without the call's name.
std::string sentence(const Transfer& transfer, int32_t status) {
  const std::string_view left = towline_last_error();
  const size_t name = left.find(": ");
  if (status == TOWLINE_AGAIN || !left.starts_with("towline_transfer_") || name == left.npos)
    return describe(transfer) + ": " + towline_status_text(status);
  return std::string(left.substr(name + 2));
}

// As of a post, with its fields.
[[noreturn]] void fail(const Transfer& transfer, int32_t status) {
  if (status == TOWLINE_NOT_FOUND) raise(status, "the transfer was never posted");
  const nb::object error = make_exception(status, sentence(transfer, status));
  error.attr("peer") = transfer.peer;
  TOWLINE_INIT(towline_result_t, result);
  if (towline_transfer_result(transfer.native, &result) >= 0) error.attr("result") = make_result(result);
  raise(error);
}

// Remembers the result of a call, then returns it or throws.
int32_t found(Transfer& transfer, int32_t status) {
  transfer.ended = status != TOWLINE_IN_PROGRESS;
  if (status < 0) fail(transfer, status);
  return status;
}

int32_t post_once(const Transfer& transfer) {
  if (transfer.bytes <= kQuickBytes) return towline_transfer_post(transfer.native);
  const WithoutGil without_gil;
  return towline_transfer_post(transfer.native);
}

int32_t start(Transfer& transfer) {
  const int32_t status = post_once(transfer);
  if (status >= 0) {
    transfer.posted = true;
    transfer.ended = status == TOWLINE_OK;
  }
  return status;
}

int32_t look(Transfer& transfer) {
  if (transfer.ended || !transfer.posted) return towline_transfer_poll(transfer.native);
  const WithoutGil without_gil;
  return towline_transfer_poll(transfer.native);
}

nb::object post(Transfer& transfer) {
  const int32_t status = start(transfer);
  if (status < 0 && status != TOWLINE_AGAIN) fail(transfer, status);
  return status_object(status);
}

nb::object poll(Transfer& transfer) { return status_object(found(transfer, look(transfer))); }

// Posts the transfer if it was never posted; waits while there is no credit.
void ensure_posted(Transfer& transfer, const Deadline& deadline) {
  const Deadline own(own_timeout(transfer));
  for (uint32_t turns = 0; !transfer.posted;) {
    const int32_t status = start(transfer);
    if (status >= 0) return;
    if (status != TOWLINE_AGAIN || deadline.passed() || own.passed()) fail(transfer, status);
    {
      const AgentCall call(agent_of(transfer.agent));
      if (towline_agent_progress(call.native()) <= 0) back_off(turns);
    }
    check_signals();
  }
}

nb::object wait(Transfer& transfer, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  ensure_posted(transfer, deadline);
  int32_t status = TOWLINE_NOT_YET;
  if (transfer.ended) status = towline_transfer_poll(transfer.native);
  while (status == TOWLINE_NOT_YET) {
    {
      const WithoutGil without_gil;
      status = towline_transfer_wait(transfer.native, deadline.signal_slice());
    }
    if (status != TOWLINE_NOT_YET) break;
    check_signals();
    if (deadline.passed()) raise_not_yet(describe(transfer) + " is still in flight");
  }
  return status_object(found(transfer, status));
}

void wait_fenced(Transfer& transfer, nb::handle fences, nb::handle timeout) {
  const Deadline deadline(timeout_ns(timeout, TOWLINE_FOREVER));
  const uint32_t wanted = fences_of(fences);
  while (true) {
    int32_t status = 0;
    {
      const WithoutGil without_gil;
      status = towline_transfer_wait_fenced(transfer.native, wanted, deadline.signal_slice());
    }
    if (status >= 0) return;
    if (status != TOWLINE_NOT_YET) fail(transfer, status);
    check_signals();
    if (deadline.passed()) raise_not_yet(describe(transfer) + " is not fenced yet");
  }
}

// ---- streams

[[noreturn]] void fail_on(const Transfer& transfer, const char* function, int32_t status) {
  check(status, function, describe(transfer) + ": " + towline_status_text(status));
  fail(transfer, status);
}

nb::object post_on(Transfer& transfer, nb::handle stream) {
  void* const native = stream_of(stream);
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_transfer_post_on(transfer.native, native);
  }
  if (status < 0 && status != TOWLINE_AGAIN) fail_on(transfer, "towline_transfer_post_on", status);
  if (status == TOWLINE_IN_PROGRESS) {
    transfer.posted = true;
    transfer.ended = false;
  }
  return status_object(status);
}

nb::object wait_on(Transfer& transfer, nb::handle stream) {
  void* const native = stream_of(stream);
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_transfer_wait_on(transfer.native, native);
  }
  if (status < 0 && status != TOWLINE_AGAIN) fail_on(transfer, "towline_transfer_wait_on", status);
  return status_object(status);
}

struct Replays : towline_replays_t {};

Replays replays(const Transfer& transfer) {
  Replays replays{{sizeof(towline_replays_t)}};
  check(towline_transfer_replays(transfer.native, &replays), "towline_transfer_replays");
  return replays;
}

void cancel(Transfer& transfer) {
  int32_t status = 0;
  {
    const WithoutGil without_gil;
    status = towline_transfer_cancel(transfer.native);
  }
  if (status < 0) fail(transfer, status);
}

void set_notice(Transfer& transfer, nb::handle notice) {
  if (notice.is_none())
    return check(towline_transfer_set_notice(transfer.native, nullptr, 0), "towline_transfer_set_notice");
  const BytesView bytes(notice);
  // An empty notice is still a notice: null would mean none.
  check(towline_transfer_set_notice(transfer.native, bytes.size() != 0 ? bytes.data() : "", bytes.size()),
        "towline_transfer_set_notice",
        "the notice can't be set while the transfer is in flight, and has at most 65536 bytes");
}

nb::str route(const Transfer& transfer) {
  std::vector<char> json(8192);
  size_t needed = 0;
  do {
    if (needed > json.size()) json.resize(needed + 1024);
    check(towline_transfer_route(transfer.native, json.data(), json.size(), &needed),
          "towline_transfer_route");
  } while (needed > json.size());
  return text(json.data(), needed - 1);
}

// ---- results

struct Result : towline_result_t {};

Result result(const Transfer& transfer) {
  Result result{{sizeof(towline_result_t)}};
  check(towline_transfer_result(transfer.native, &result), "towline_transfer_result");
  return result;
}

nb::list failed_ranges(const Result& result) {
  nb::list ranges;
  for (uint32_t i = 0; i < std::min<uint32_t>(result.failed_ranges, 8); ++i) {
    const towline_failed_range_t& range = result.failed[i];
    ranges.append(
        named("FailedRange")(range.first, range.count, status_object(range.status), range.vendor_code));
  }
  return ranges;
}

nb::str show(const Transfer& transfer) {
  Result known{{sizeof(towline_result_t)}};
  if (!transfer.posted || towline_transfer_result(transfer.native, &known) < 0)
    return nb::str("Transfer(nbytes={}, posted=False)").format(transfer.bytes);
  return nb::str("Transfer(nbytes={}, status={})").format(transfer.bytes, towline_status_name(known.status));
}

// ---- making

void set_counter(towline_transfer_options_t& options, nb::handle counter) {
  if (counter.is_none()) return;
  options.counter_add = 1;
  if (!PyTuple_Check(counter.ptr())) {
    options.counter_key = unsigned_integer(counter, "counter");
    return;
  }
  if (PyTuple_GET_SIZE(counter.ptr()) != 2)
    raise(TOWLINE_INVALID_ARGUMENT, "counter is a key or (key, amount)");
  options.counter_key = unsigned_integer(counter[0], "a counter's key");
  options.counter_add = unsigned_integer(counter[1], "a counter's amount");
}

nb::object create(nb::handle_t<Agent> agent, const BlockList& from, nb::handle from_picks,
                  const BlockList& to, nb::handle to_picks, nb::handle notice, nb::handle counter,
                  nb::handle timeout, nb::handle backend, nb::handle workers) {
  check_writable(to);
  auto* transfer = new Transfer;
  nb::object made = nb::cast(transfer, nb::rv_policy::take_ownership);
  transfer->agent = nb::borrow(agent);
  transfer->peer = from.peer.is_none() ? to.peer : from.peer;
  transfer->timeout = timeout.is_none() ? 0 : std::max<uint64_t>(timeout_ns(timeout, 0), 1);

  TOWLINE_INIT(towline_transfer_options_t, options);
  set_counter(options, counter);
  options.timeout_ns = transfer->timeout;
  options.workers =
      static_cast<uint32_t>(std::min<uint64_t>(unsigned_integer(workers, "workers"), UINT32_MAX));
  std::string its_backend;
  if (!backend.is_none()) {
    its_backend = bytes_of_text(backend, "backend");
    options.backend = its_backend.c_str();
  }
  std::string its_notice;
  if (!notice.is_none()) {
    const BytesView bytes(notice);
    its_notice.assign(static_cast<const char*>(bytes.data()), bytes.size());
    options.notice = its_notice.data();
    options.notice_bytes = its_notice.size();
  }
  const Picks sources(from_picks, towline_block_list_blocks(from.native), "from");
  const Picks targets(to_picks, towline_block_list_blocks(to.native), "to");
  if (sources.native() != nullptr) options.from = *sources.native();
  if (targets.native() != nullptr) options.to = *targets.native();
  int32_t status = 0;
  towline_transfer_t* native = nullptr;
  {
    const AgentCall call(agent_of(agent));
    status = towline_transfer_create(call.native(), from.native, to.native, &options, &native);
  }
  check(status, "towline_transfer_create");
  transfer->native = native;
  TOWLINE_INIT(towline_result_t, result);
  check(towline_transfer_result(native, &result), "towline_transfer_result");
  transfer->bytes = result.total_bytes;
  transfer->ended = true;
  return made;
}

}  // namespace

nb::object make_result(const towline_result_t& result) { return nb::cast(Result{result}); }

void bind_transfer(nb::module_& module) {
  Class<Result>(module, "Result")
      .def_prop_ro("status", [](const Result& result) { return status_object(result.status); })
      .def_prop_ro("fenced_locally",
                   [](const Result& result) { return (result.fences & TOWLINE_FENCE_LOCAL) != 0; })
      .def_prop_ro("fenced_remotely",
                   [](const Result& result) { return (result.fences & TOWLINE_FENCE_REMOTE) != 0; })
      .def_ro("nbytes", &Result::bytes)
      .def_ro("total_nbytes", &Result::total_bytes)
      .def_ro("blocks", &Result::blocks)
      .def_ro("posted_at_ns", &Result::posted_at_ns)
      .def_ro("ended_at_ns", &Result::ended_at_ns)
      .def_prop_ro("failed", &failed_ranges)
      .def("__repr__", [](const Result& result) {
        return nb::str("Result(status={}, nbytes={} of {}, blocks={})")
            .format(towline_status_name(result.status), result.bytes, result.total_bytes, result.blocks);
      });
  Class<Replays>(module, "Replays")
      .def_ro("begun", &Replays::begun)
      .def_ro("ended", &Replays::ended)
      .def_ro("refused", &Replays::refused)
      .def_prop_ro("status", [](const Replays& replays) { return status_object(replays.status); })
      .def("__repr__", [](const Replays& replays) {
        return nb::str("Replays(begun={}, ended={}, refused={}, status={})")
            .format(replays.begun, replays.ended, replays.refused, towline_status_name(replays.status));
      });
  Class<Transfer>(module, "Transfer", nb::type_slots(collected<Transfer>), nb::is_weak_referenceable())
      .def("post", &post)
      .def("poll", &poll)
      .def("wait", &wait, nb::arg("timeout") = nb::none())
      .def("wait_fenced", &wait_fenced, nb::arg("fences") = "both", nb::arg("timeout") = nb::none())
      .def("post_on", &post_on, nb::arg("stream"))
      .def("wait_on", &wait_on, nb::arg("stream"))
      .def_prop_ro("replays", &replays)
      .def("cancel", &cancel)
      .def("set_notice", &set_notice, nb::arg("notice").none())
      .def_prop_ro("result", &result)
      .def_ro("nbytes", &Transfer::bytes)
      .def_ro("posted", &Transfer::posted)
      .def_prop_ro("timeout",
                   [](const Transfer& transfer) { return static_cast<double>(own_timeout(transfer)) / 1e9; })
      .def("_route", &route)
      .def("route",
           [](const Transfer& transfer) {
             return nb::module_::import_("json").attr("loads")(route(transfer));
           })
      .def("__repr__", &show);
  define(module, "_transfer", &create, nb::arg("agent"), nb::arg("from_"), nb::arg("from_picks").none(),
         nb::arg("to"), nb::arg("to_picks").none(), nb::arg("notice").none(), nb::arg("counter").none(),
         nb::arg("timeout").none(), nb::arg("backend").none(), nb::arg("workers"));
}

}  // namespace towline::python
