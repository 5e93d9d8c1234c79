// Transfers of towline._fabric. Callers keep what a transfer uses until it is fenced.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>

#include "engine.h"

namespace towline::python {
namespace {

struct Token {
  FabricEngine* engine;
  uint64_t token;
};

// Options as each call takes them; a token of 0 asks for no event.
class Options {
 public:
  Options(FabricEngine& engine, uint32_t immediate, uint32_t count, nb::handle message, nb::handle timeout,
          uint64_t token) {
    native_.struct_size = sizeof native_;
    native_.immediate = immediate;
    native_.count = count;
    native_.timeout_ns = timeout.is_none() ? 0 : std::max<uint64_t>(1, timeout_ns(timeout, 0));
    if (!message.is_none()) {
      view_ = std::make_unique<BytesView>(message);
      native_.message = view_->size() != 0 ? view_->data() : "";
      native_.message_bytes = view_->size();
    }
    if (token == 0) return;
    token_ = std::make_unique<Token>(Token{&engine, token});
    native_.context = token_.get();
    native_.done = [](void* context, int32_t status) {
      const std::unique_ptr<Token> told{static_cast<Token*>(context)};
      told->engine->events.push({.kind = FabricEvent::kDone, .token = told->token, .status = status});
    };
  }
  [[nodiscard]] const towline_fabric_transfer_options_t* native() const noexcept { return &native_; }
  // Its callback owns the token once it was accepted. Throws what the call said.
  uint64_t started(int32_t status, const char* function, uint64_t transfer) {
    if (status >= 0) (void)token_.release();
    check(status, function);
    return transfer;
  }

 private:
  towline_fabric_transfer_options_t native_{};
  std::unique_ptr<BytesView> view_;
  std::unique_ptr<Token> token_;
};

towline_fabric_memory_t* memory_of(uint64_t memory) {
  return reinterpret_cast<towline_fabric_memory_t*>(memory);
}

uint64_t single(FabricEngine& engine, uint32_t operation, uint64_t peer, uint64_t local,
                uint64_t local_offset, FabricRemoteMemory& remote, uint64_t remote_offset, uint64_t bytes,
                uint32_t immediate, uint32_t count, nb::object message, nb::object timeout, uint64_t token) {
  Options options(engine, immediate, count, message, timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_single(call.native(), operation, peer, memory_of(local), local_offset,
                                   remote.native, remote_offset, bytes, options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_single", transfer);
}

const uint32_t* indices(const FabricView& view, size_t& count) {
  if (view.buffer.itemsize != sizeof(uint32_t))
    raise(TOWLINE_INVALID_ARGUMENT, "page indices are an array of 32-bit integers");
  count = static_cast<size_t>(view.buffer.len) / sizeof(uint32_t);
  return static_cast<const uint32_t*>(view.buffer.buf);
}

uint64_t paged(FabricEngine& engine, uint32_t operation, uint64_t peer, uint64_t local,
               FabricRemoteMemory& remote, const FabricView& local_pages, const FabricView& remote_pages,
               uint64_t page_bytes, uint64_t local_stride, uint64_t remote_stride, uint64_t local_offset,
               uint64_t remote_offset, uint32_t immediate, uint32_t count, nb::object message,
               nb::object timeout, uint64_t token) {
  towline_fabric_pages_t pages{};
  pages.struct_size = sizeof pages;
  size_t remote_count = 0;
  pages.local_pages = indices(local_pages, pages.count);
  pages.remote_pages = indices(remote_pages, remote_count);
  if (remote_count != pages.count)
    raise(TOWLINE_MISMATCH, "there are not as many local pages as remote ones");
  pages.page_bytes = page_bytes;
  pages.local_stride = local_stride;
  pages.remote_stride = remote_stride;
  pages.local_offset = local_offset;
  pages.remote_offset = remote_offset;
  Options options(engine, immediate, count, message, timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_paged(call.native(), operation, peer, memory_of(local), remote.native, &pages,
                                  options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_paged", transfer);
}

uint64_t signal(FabricEngine& engine, uint64_t peer, uint32_t immediate, uint32_t count, nb::object message,
                nb::object timeout, uint64_t token) {
  Options options(engine, immediate, count, message, timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_signal(call.native(), peer, options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_signal", transfer);
}

// parts: (peer, memory, offset, remote, offset, bytes) each; memory 0 and remote None with 0 bytes.
uint64_t scatter(FabricEngine& engine, nb::list parts, uint32_t immediate, uint32_t count, nb::object message,
                 nb::object timeout, uint64_t token) {
  std::vector<towline_fabric_part_t> list;
  for (const nb::handle item : parts) {
    const auto part = nb::cast<nb::tuple>(item);
    if (!part[3].is_none() && !nb::isinstance<FabricRemoteMemory>(part[3]))
      raise(TOWLINE_INVALID_ARGUMENT,
            std::string("remote is a Remote or None, not ") + Py_TYPE(nb::object(part[3]).ptr())->tp_name);
    list.push_back({unsigned_integer(part[0], "peer"), memory_of(nb::cast<uint64_t>(part[1])),
                    unsigned_integer(part[2], "offset"),
                    part[3].is_none() ? nullptr : nb::cast<FabricRemoteMemory&>(part[3]).native,
                    unsigned_integer(part[4], "offset"), unsigned_integer(part[5], "bytes")});
  }
  Options options(engine, immediate, count, message, timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_scatter(call.native(), list.data(), list.size(), options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_scatter", transfer);
}

uint32_t add_group(FabricEngine& engine, const std::vector<uint64_t>& peers) {
  uint32_t group = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_group_create(call.native(), peers.data(), peers.size(), &group);
  }
  check(status, "towline_fabric_group_create");
  return group;
}

void remove_group(FabricEngine& engine, uint32_t group) {
  const FabricCall call(engine);
  (void)towline_fabric_group_destroy(call.native(), group);
}

uint64_t signal_group(FabricEngine& engine, uint32_t group, uint32_t immediate, uint32_t count,
                      nb::object message, nb::object timeout, uint64_t token) {
  Options options(engine, immediate, count, message, timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_group_signal(call.native(), group, options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_group_signal", transfer);
}

uint64_t barrier(FabricEngine& engine, uint32_t group, uint32_t immediate, nb::object timeout,
                 uint64_t token) {
  Options options(engine, 0, 0, nb::none(), timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_barrier(call.native(), group, immediate, options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_barrier", transfer);
}

uint64_t send(FabricEngine& engine, uint64_t peer, uint64_t local, uint64_t offset, uint64_t bytes,
              nb::object timeout, uint64_t token) {
  Options options(engine, 0, 0, nb::none(), timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_send(call.native(), peer, memory_of(local), offset, bytes, options.native(),
                                 &transfer);
  }
  return options.started(status, "towline_fabric_send", transfer);
}

uint64_t receive(FabricEngine& engine, uint64_t local, uint64_t offset, uint64_t bytes, uint64_t from,
                 nb::object timeout, uint64_t token) {
  towline_fabric_receive_options_t options{};
  options.struct_size = sizeof options;
  options.from = from;
  options.timeout_ns = timeout.is_none() ? 0 : std::max<uint64_t>(1, timeout_ns(timeout, 0));
  auto told = std::make_unique<Token>(Token{&engine, token});
  if (token != 0) {
    options.context = told.get();
    options.done = [](void* context, int32_t status, towline_fabric_peer_t peer, uint64_t size) {
      const std::unique_ptr<Token> owned{static_cast<Token*>(context)};
      owned->engine->events.push({.kind = FabricEvent::kReceived,
                                  .token = owned->token,
                                  .status = status,
                                  .peer = peer,
                                  .first = size});
    };
  }
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_receive(call.native(), memory_of(local), offset, bytes, &options, &transfer);
  }
  if (status >= 0 && token != 0) (void)told.release();
  check(status, "towline_fabric_receive");
  return transfer;
}

nb::tuple received(FabricEngine& engine, uint64_t transfer) {
  uint64_t peer = 0;
  uint64_t bytes = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_received(call.native(), transfer, &peer, &bytes);
  }
  check(status, "towline_fabric_received");
  return nb::make_tuple(peer, bytes);
}

// Waits in slices, so that signals are seen and close() can finish. None: without a limit.
template <class Wait>
int32_t wait_for(FabricEngine& engine, nb::handle seconds, int32_t unfinished, Wait&& wait) {
  const Deadline deadline(timeout_ns(seconds, TOWLINE_FOREVER));
  for (;;) {
    int32_t status = 0;
    {
      const FabricCall call(engine);
      status = wait(call.native(), deadline.slice());
    }
    if (status != unfinished || deadline.passed()) return status;
    check_signals();
  }
}

nb::object wait(FabricEngine& engine, uint64_t transfer, nb::object seconds) {
  return status_object(wait_for(engine, seconds, TOWLINE_NOT_YET, [&](towline_fabric_t* native, uint64_t ns) {
    return towline_fabric_wait(native, transfer, ns);
  }));
}

nb::object wait_fenced(FabricEngine& engine, uint64_t transfer, nb::object seconds) {
  return status_object(wait_for(engine, seconds, TOWLINE_NOT_YET, [&](towline_fabric_t* native, uint64_t ns) {
    return towline_fabric_wait_fenced(native, transfer, ns);
  }));
}

nb::object wait_counter(FabricEngine& engine, uint32_t immediate, uint64_t value, nb::object seconds) {
  return status_object(wait_for(engine, seconds, TOWLINE_NOT_YET, [&](towline_fabric_t* native, uint64_t ns) {
    return towline_fabric_counter_wait(native, immediate, value, ns);
  }));
}

uint64_t counter(FabricEngine& engine, uint32_t immediate) {
  uint64_t value = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_counter(call.native(), immediate, &value);
  }
  check(status, "towline_fabric_counter");
  return value;
}

uint64_t counter_when(FabricEngine& engine, uint32_t immediate, uint64_t value, nb::object timeout,
                      uint64_t token) {
  Options options(engine, 0, 0, nb::none(), timeout, token);
  uint64_t transfer = 0;
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_counter_when(call.native(), immediate, value, options.native(), &transfer);
  }
  return options.started(status, "towline_fabric_counter_when", transfer);
}

void counter_mirror(FabricEngine& engine, uint32_t immediate, uint64_t word) {
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_counter_mirror(call.native(), immediate, reinterpret_cast<uint64_t*>(word));
  }
  check(status, "towline_fabric_counter_mirror");
}

nb::object poll(FabricEngine& engine, uint64_t transfer) {
  int32_t status = 0;
  {
    const FabricCall call(engine);
    status = towline_fabric_poll(call.native(), transfer);
  }
  return status_object(status);
}

void cancel(FabricEngine& engine, uint64_t transfer) {
  const FabricCall call(engine);
  (void)towline_fabric_cancel(call.native(), transfer);
}

void release(FabricEngine& engine, uint64_t transfer) {
  const FabricCall call(engine);
  (void)towline_fabric_release(call.native(), transfer);
}

}  // namespace

void bind_fabric_transfers(FabricEngineClass& engine) {
  engine.def("single", &single, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg());
  engine.def("paged", &paged, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
             nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg().none(), nb::arg());
  engine.def("signal", &signal, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg());
  engine.def("scatter", &scatter, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none(),
             nb::arg());
  engine.def("add_group", &add_group);
  engine.def("remove_group", &remove_group);
  engine.def("signal_group", &signal_group, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
             nb::arg().none(), nb::arg());
  engine.def("barrier", &barrier, nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  engine.def("send", &send, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  engine.def("receive", &receive, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  engine.def("received", &received);
  engine.def("poll", &poll);
  engine.def("wait", &wait, nb::arg(), nb::arg().none());
  engine.def("wait_fenced", &wait_fenced, nb::arg(), nb::arg().none());
  engine.def("cancel", &cancel);
  engine.def("release", &release);
  engine.def("counter", &counter);
  engine.def("wait_counter", &wait_counter, nb::arg(), nb::arg(), nb::arg().none());
  engine.def("counter_when", &counter_when, nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  engine.def("counter_mirror", &counter_mirror);
}

}  // namespace towline::python
