// C API: collectives.
#include "towline/collectives.h"

#include <algorithm>
#include <cstring>

#include "base/config/config_file.h"
#include "capi/application_store.h"
#include "capi/directory_store.h"
#include "capi/handles.h"
#include "collectives/backend.h"
#include "collectives/calls/types.h"
#include "collectives/communicator.h"
#include "collectives/interrupt.h"
#include "rendezvous/ranks.h"
#include "towline/collectives_gpu.h"

using namespace towline;                                                     // NOLINT: C entry points
using collectives::Communicator, collectives::OwnedCall, collectives::Work;  // NOLINT

struct towline_communicator {
  std::shared_ptr<Communicator> communicator;
};
struct towline_batch {
  std::shared_ptr<Communicator> communicator;
  std::vector<std::unique_ptr<OwnedCall>> calls;
};
struct towline_hook {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<collectives::Hook> hook;
};
struct towline_window {
  std::shared_ptr<Communicator> communicator;
  towline_collective_window* window;
};

namespace {

Work* of(towline_work_t* work) { return reinterpret_cast<Work*>(work); }
const Work* of(const towline_work_t* work) { return reinterpret_cast<const Work*>(work); }

Status give_text(const std::string& text, char* out, size_t capacity, size_t* needed) {
  return capi::give(text.data(), text.size(), true, out, capacity, needed);
}

// Copies a caller's call as far as its version of the struct goes. The common case is our own version.
const towline_collective_t& take_call(const towline_collective_t* given, towline_collective_t& copy) {
  capi::need(given, "call");
  if (given->struct_size == sizeof copy) return *given;
  if (given->struct_size < offsetof(towline_collective_t, input_offsets) || given->struct_size > 4096)
    fail(Status::kInvalidArgument, "call.struct_size is {}; set it to sizeof the struct", given->struct_size);
  capi::refuse_newer_fields(given, given->struct_size, sizeof copy, "call");
  copy = {};
  std::memcpy(&copy, given, std::min(given->struct_size, sizeof copy));
  return copy;
}

// Null, or the caller's options as far as its version of the struct goes.
const towline_collective_options_t* take_options(const towline_collective_options_t* given,
                                                 towline_collective_options_t& copy) {
  if (given == nullptr || given->struct_size == sizeof copy) return given;
  if (given->struct_size < offsetof(towline_collective_options_t, interrupted) || given->struct_size > 4096)
    fail(Status::kInvalidArgument, "options.struct_size is {}; set it to sizeof the struct",
         given->struct_size);
  capi::refuse_newer_fields(given, given->struct_size, sizeof copy, "options");
  copy = {};
  std::memcpy(&copy, given, std::min(given->struct_size, sizeof copy));
  return &copy;
}

std::map<std::string, std::string> take_hints(const char* const* hints) {
  std::map<std::string, std::string> taken;
  for (; hints != nullptr && hints[0] != nullptr && hints[1] != nullptr; hints += 2)
    taken[hints[0]] = hints[1];
  return taken;
}

// Null: the application gives none. From here on it is released, whatever becomes of the communicator.
std::shared_ptr<rendezvous::Store> take_store(const towline_collective_store_t* given) {
  if (given == nullptr) return nullptr;
  if (given->struct_size < sizeof *given || given->set == nullptr || given->get == nullptr)
    fail(Status::kInvalidArgument, "store needs struct_size, set and get");
  capi::refuse_newer_fields(given, std::min<size_t>(given->struct_size, 4096), sizeof *given, "store");
  return std::make_shared<capi::ApplicationStore>(*given);
}

// The application can end the wait: rank 0, which serves the others, may not be there yet.
std::shared_ptr<rendezvous::Store> open_store(const towline_communicator_options_t& given,
                                              const std::string& bootstrap, int rank, const Config& config,
                                              Deadline deadline) {
  const collectives::Interrupt interrupt(given.interrupted, given.interrupt_context);
  return rendezvous::open_store(bootstrap, rank, config, deadline, [&] {
    if (collectives::Interrupt::asked())
      fail(Status::kCancelled, "rank {} was interrupted while it waited for the place where ranks meet ({})",
           rank, bootstrap);
  });
}

std::shared_ptr<Communicator> create(const towline_communicator_options_t& given) {
  std::shared_ptr<rendezvous::Store> store = take_store(given.store);
  auto config = std::make_shared<Config>(Config::from_process());
  if (given.config != nullptr) {
    for (const auto& [key, value] : parse_config_file(given.config, "options.config"))
      config->set(key, value.text);
  }
  config->declare_all_settings();
  config->refuse_unknown_keys();
  config->warn_unknown_keys();
  collectives::CommunicatorOptions options;
  if (given.name != nullptr) options.name = given.name;
  if (given.backend != nullptr) options.backend = given.backend;
  if (given.timeout_ns != 0) options.timeout_ns = given.timeout_ns;
  if (given.flight_records != 0) options.flight_records = given.flight_records;
  options.flags = given.flags;
  options.hints = take_hints(given.hints);
  options.interrupted = given.interrupted;
  options.interrupt_context = given.interrupt_context;
  if (given.size > 0) {
    options.rank = given.rank;
    options.size = given.size;
  } else {
    const auto found = rendezvous::rank_from_environment(*config, {});
    options.rank = found.rank;
    options.size = found.size;
  }
  const Deadline deadline = Deadline::after(monotonic_now_ns(), options.timeout_ns);
  const std::string bootstrap = given.bootstrap != nullptr ? given.bootstrap : "env";
  if (store != nullptr) {
    // The ranks meet there.
  } else if (options.backend == "fake" || (options.size == 1 && bootstrap == "env")) {
    store = std::make_shared<rendezvous::MemoryStore>();
  } else if (bootstrap.find("://") != std::string::npos && !bootstrap.starts_with("tcp://")) {
    capi::need(given.agent, "agent (to open a directory with)");
    store = capi::open_directory_store(given.agent, bootstrap);
  } else {
    store = open_store(given, bootstrap, options.rank, *config, deadline);
  }
  return Communicator::create(std::move(options), std::move(store), std::move(config));
}

towline_communicator_t* handle_for(std::shared_ptr<Communicator> communicator) {
  auto* handle = new towline_communicator{std::move(communicator)};
  handle->communicator->set_handle(handle);
  return handle;
}

Communicator& need_communicator(const towline_communicator_t* communicator) {
  capi::need(communicator, "communicator");
  communicator->communicator->refuse_forked();
  return *communicator->communicator;
}

// A work whose communicator this process made: in a child of fork the parent's threads may have held its locks.
collectives::Work& need_work(towline_work_t* work) {
  capi::need(work, "work");
  auto& found = *reinterpret_cast<collectives::Work*>(work);
  found.communicator()->refuse_forked();
  return found;
}

// The window may still be used, and `bytes` from `offset` lie in the rank's memory of it. Throws Error.
void check_window(const towline_window_t* window, int32_t rank, uint64_t offset, uint64_t bytes) {
  capi::need(window, "window");
  std::string text;
  if (const Status status = window->communicator->usable(text); is_error(status)) fail(status, "{}", text);
  if (rank < 0 || rank >= window->communicator->size())
    fail(Status::kOutOfRange, "no rank {} among {}", rank, window->communicator->size());
  void* address = nullptr;
  uint64_t there = 0;
  window->communicator->table().window_map(window->window, rank, &address, &there);
  if (offset > there || bytes > there - offset)
    fail(Status::kOutOfRange, "{} bytes at {} do not fit the {} bytes of rank {}", bytes, offset, there,
         rank);
}

}  // namespace

extern "C" {

size_t towline_datatype_bytes(uint32_t datatype) { return collectives::datatype_bytes(datatype); }
const char* towline_datatype_name(uint32_t datatype) { return collectives::datatype_name(datatype); }
const char* towline_reduction_name(uint32_t reduction) { return collectives::reduction_name(reduction); }
const char* towline_collective_op_name(uint32_t op) { return collectives::op_name(op); }

int32_t towline_collective_environment(const char* method, int32_t* rank, int32_t* size) {
  return capi::guard(__func__, [&] {
    capi::need(rank, "rank");
    capi::need(size, "size");
    const auto found =
        rendezvous::rank_from_environment(Config::from_process(), method != nullptr ? method : "");
    *rank = found.rank;
    *size = found.size;
    return Status::kOk;
  });
}

int32_t towline_communicator_create(const towline_communicator_options_t* options,
                                    towline_communicator_t** communicator) {
  return capi::guard(__func__, [&] {
    capi::need(communicator, "communicator");
    *communicator = handle_for(create(capi::take_options(options, "options")));
    return Status::kOk;
  });
}

int32_t towline_communicator_destroy(towline_communicator_t* communicator) {
  return capi::guard(__func__, [&] {
    // In a child of fork it is left alone: its threads and locks are those of the parent.
    if (communicator == nullptr || communicator->communicator->inherited()) return Status::kOk;
    communicator->communicator->close();
    delete communicator;
    return Status::kOk;
  });
}

int32_t towline_communicator_finalize(towline_communicator_t* communicator) {
  return capi::guard(__func__, [&] {
    need_communicator(communicator).finalize();
    return Status::kOk;
  });
}

int32_t towline_communicator_rank(const towline_communicator_t* communicator) {
  return communicator == nullptr ? TOWLINE_INVALID_ARGUMENT : communicator->communicator->rank();
}
int32_t towline_communicator_size(const towline_communicator_t* communicator) {
  return communicator == nullptr ? TOWLINE_INVALID_ARGUMENT : communicator->communicator->size();
}
const char* towline_communicator_name(const towline_communicator_t* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->name().c_str();
}
const char* towline_communicator_backend(const towline_communicator_t* communicator) {
  return communicator == nullptr ? "" : communicator->communicator->backend_name().c_str();
}

int32_t towline_communicator_info(towline_communicator_t* communicator, char* json, size_t capacity,
                                  size_t* needed) {
  return capi::guard(__func__, [&] {
    return give_text(need_communicator(communicator).info_json(), json, capacity, needed);
  });
}

int32_t towline_communicator_set_timeout(towline_communicator_t* communicator, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (timeout_ns == 0) fail(Status::kInvalidArgument, "timeout_ns is 0");
    need_communicator(communicator).set_timeout(timeout_ns);
    return Status::kOk;
  });
}
uint64_t towline_communicator_timeout(const towline_communicator_t* communicator) {
  return communicator == nullptr ? 0 : communicator->communicator->timeout_ns();
}

int32_t towline_communicator_set_hint(towline_communicator_t* communicator, const char* key,
                                      const char* value) {
  return capi::guard(__func__, [&] {
    capi::need(key, "key");
    capi::need(value, "value");
    need_communicator(communicator).set_hint(key, value);
    return Status::kOk;
  });
}

int32_t towline_communicator_split(towline_communicator_t* parent, const int32_t* ranks, size_t count,
                                   const char* name, uint64_t timeout_ns,
                                   towline_communicator_t** communicator) {
  return capi::guard(__func__, [&] {
    capi::need(communicator, "communicator");
    if (count != 0) capi::need(ranks, "ranks");
    *communicator = nullptr;
    auto made = need_communicator(parent).split(ranks, count, name, timeout_ns);
    if (made != nullptr) *communicator = handle_for(std::move(made));
    return Status::kOk;
  });
}

int32_t towline_communicator_abort(towline_communicator_t* communicator, const char* reason) {
  return capi::guard(__func__, [&] {
    need_communicator(communicator).abort(reason != nullptr ? reason : "");
    return Status::kOk;
  });
}

int32_t towline_communicator_error(const towline_communicator_t* communicator, char* text, size_t capacity,
                                   size_t* needed) {
  if (communicator == nullptr) return capi::refuse_null(__func__, "communicator");
  std::string found;
  const Status status = communicator->communicator->error(&found);
  if (text != nullptr || needed != nullptr) (void)give_text(found, text, capacity, needed);
  return static_cast<int32_t>(status);
}

// ---- Operations

int32_t towline_collective_issue(towline_communicator_t* communicator, const towline_collective_t* call,
                                 const towline_collective_options_t* options, void* stream) {
  return capi::guard(__func__, [&] {
    Communicator& self = need_communicator(communicator);
    towline_collective_t copy;
    towline_collective_options_t options_copy;
    self.issue(take_call(call, copy), take_options(options, options_copy), stream);
    return Status::kOk;
  });
}

int32_t towline_collective_issue_norm(towline_communicator_t* communicator,
                                      const towline_collective_norm_t* norm,
                                      const towline_collective_options_t* options, void* stream) {
  return capi::guard(__func__, [&] {
    Communicator& self = need_communicator(communicator);
    capi::need(norm, "norm");
    if (norm->struct_size < sizeof *norm || norm->struct_size > 4096)
      fail(Status::kInvalidArgument, "norm.struct_size is {}; set it to sizeof the struct",
           norm->struct_size);
    capi::refuse_newer_fields(norm, norm->struct_size, sizeof *norm, "norm");
    towline_collective_options_t options_copy;
    self.issue_norm(*norm, take_options(options, options_copy), stream);
    return Status::kOk;
  });
}

int32_t towline_collective_issue_beside(towline_communicator_t* communicator,
                                        const towline_collective_t* call,
                                        const towline_collective_options_t* options, void* stream,
                                        towline_work_t** work) {
  return capi::guard(__func__, [&] {
    Communicator& self = need_communicator(communicator);
    capi::need(work, "work");
    towline_collective_t copy;
    towline_collective_options_t options_copy;
    *work = reinterpret_cast<towline_work_t*>(
        self.issue_beside(take_call(call, copy), take_options(options, options_copy), stream));
    return Status::kOk;
  });
}

int32_t towline_work_wait_on(towline_work_t* work, void* stream) {
  return capi::guard(__func__, [&] {
    collectives::Work& mine = need_work(work);
    mine.communicator()->order_after(mine, stream);
    return Status::kOk;
  });
}

int32_t towline_collective(towline_communicator_t* communicator, const towline_collective_t* call,
                           const towline_collective_options_t* options, towline_work_t** work) {
  return capi::guard(__func__, [&] {
    Communicator& self = need_communicator(communicator);
    towline_collective_t copy;
    const towline_collective_t& taken = take_call(call, copy);
    towline_collective_options_t options_copy;
    options = take_options(options, options_copy);
    if (work != nullptr) {
      *work = reinterpret_cast<towline_work_t*>(self.start(taken, options));
      return Status::kOk;
    }
    std::string text;
    const Status status = self.run(taken, options, text);
    if (is_error(status)) fail(status, "{}", text);
    return status;
  });
}

int32_t towline_batch_create(towline_communicator_t* communicator, towline_batch_t** batch) {
  return capi::guard(__func__, [&] {
    need_communicator(communicator);
    capi::need(batch, "batch");
    *batch = new towline_batch{communicator->communicator, {}};
    return Status::kOk;
  });
}

int32_t towline_batch_add(towline_batch_t* batch, const towline_collective_t* call) {
  return capi::guard(__func__, [&] {
    capi::need(batch, "batch");
    towline_collective_t copy;
    const towline_collective_t& taken = take_call(call, copy);
    if (taken.op != TOWLINE_COLLECTIVE_SEND && taken.op != TOWLINE_COLLECTIVE_RECV)
      fail(Status::kInvalidArgument, "a batch takes sends and receives, not {}",
           collectives::op_name(taken.op));
    batch->communicator->check_call(taken);
    batch->calls.push_back(std::make_unique<OwnedCall>(taken, batch->communicator->size()));
    return Status::kOk;
  });
}

int32_t towline_batch_issue(towline_batch_t* batch, const towline_collective_options_t* options,
                            towline_work_t** work) {
  return capi::guard(__func__, [&] {
    capi::need(batch, "batch");
    towline_collective_options_t options_copy;
    options = take_options(options, options_copy);
    auto calls = std::move(batch->calls);
    batch->calls.clear();
    if (work != nullptr) {
      *work = reinterpret_cast<towline_work_t*>(batch->communicator->start_batch(std::move(calls), options));
      return Status::kOk;
    }
    std::string text;
    const Status status = batch->communicator->run_batch(std::move(calls), options, text);
    if (is_error(status)) fail(status, "{}", text);
    return status;
  });
}

void towline_batch_destroy(towline_batch_t* batch) { delete batch; }

// ---- Works

uint32_t towline_work_state(const towline_work_t* work) {
  return work == nullptr ? uint32_t{TOWLINE_WORK_ERROR} : of(work)->state();
}
int32_t towline_work_poll(towline_work_t* work) {
  const int32_t status = towline_work_wait(work, 0);
  return status == TOWLINE_NOT_YET ? TOWLINE_IN_PROGRESS : status;
}

int32_t towline_work_wait(towline_work_t* work, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    collectives::Work& mine = need_work(work);
    const Status status = mine.communicator()->wait(mine, timeout_ns);
    if (is_error(status)) fail(status, "{}", mine.error());
    return status == Status::kInProgress ? Status::kNotYet : status;
  });
}
int32_t towline_work_wait_blocking(towline_work_t* work, uint64_t timeout_ns) {
  return towline_work_wait(work, timeout_ns);
}
uint64_t towline_work_timeout(const towline_work_t* work) {
  return work == nullptr ? 0 : of(work)->timeout_ns();
}
const char* towline_work_error(const towline_work_t* work) {
  return work == nullptr ? "" : of(work)->error();
}
int32_t towline_work_source(const towline_work_t* work) {
  return work == nullptr || !of(work)->ended() ? TOWLINE_ANY_RANK : of(work)->source;
}
uint32_t towline_work_op(const towline_work_t* work) {
  return work == nullptr ? uint32_t{TOWLINE_COLLECTIVE_BARRIER} : of(work)->op();
}

int32_t towline_work_on(towline_work_t* work, uint32_t event, towline_work_fn function, void* context) {
  return capi::guard(__func__, [&] {
    collectives::Work& mine = need_work(work);
    if (function == nullptr || event > TOWLINE_WORK_WAIT_POST)
      fail(Status::kInvalidArgument, "no function, or no event {}", event);
    mine.on(event, function, context);
    return Status::kOk;
  });
}
void towline_work_retain(towline_work_t* work) {
  if (work != nullptr) of(work)->retain();
}
void towline_work_release(towline_work_t* work) {
  if (work != nullptr) of(work)->release();
}

// ---- Hooks, flight recorder

int32_t towline_communicator_hook(towline_communicator_t* communicator, uint32_t kind,
                                  towline_hook_fn function, void* context, towline_hook_t** hook) {
  return capi::guard(__func__, [&] {
    capi::need(hook, "hook");
    Communicator& self = need_communicator(communicator);
    // First, since nobody could remove a hook without a handle.
    auto made = std::unique_ptr<towline_hook>(new towline_hook{communicator->communicator, nullptr});
    made->hook = self.add_hook(kind, function, context);
    *hook = made.release();
    return Status::kOk;
  });
}

void towline_hook_remove(towline_hook_t* hook) {
  if (hook == nullptr || hook->communicator->inherited()) return;
  hook->communicator->remove_hook(hook->hook);
  delete hook;
}

int32_t towline_communicator_flight_records(towline_communicator_t* communicator, char* json, size_t capacity,
                                            size_t* needed) {
  return capi::guard(__func__, [&] {
    Communicator& self = need_communicator(communicator);
    return give_text(self.recorder().dump(self.name(), self.rank(), self.size()), json, capacity, needed);
  });
}

int32_t towline_communicator_flight_reset(towline_communicator_t* communicator) {
  return capi::guard(__func__, [&] {
    need_communicator(communicator).recorder().reset();
    return Status::kOk;
  });
}

// ---- Windows

int32_t towline_window_create(towline_communicator_t* communicator, void* address, uint64_t bytes,
                              towline_window_t** window) {
  return capi::guard(__func__, [&] {
    capi::need(window, "window");
    Communicator& self = need_communicator(communicator);
    // First, since nobody could close a window without a handle.
    auto made = std::unique_ptr<towline_window>(new towline_window{communicator->communicator, nullptr});
    made->window = self.open_window(address, bytes);
    *window = made.release();
    return Status::kOk;
  });
}

int32_t towline_window_destroy(towline_window_t* window, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    if (window == nullptr || window->communicator->inherited()) return Status::kOk;
    const std::unique_ptr<towline_window> owned(window);
    window->communicator->close_window(window->window, timeout_ns);
    return Status::kOk;
  });
}

void* towline_window_address(const towline_window_t* window) {
  return window == nullptr ? nullptr : towline_window_map_remote(window, window->communicator->rank());
}

uint64_t towline_window_bytes(const towline_window_t* window, int32_t rank) {
  if (window == nullptr || rank < 0 || rank >= window->communicator->size()) return 0;
  void* address = nullptr;
  uint64_t bytes = 0;
  window->communicator->table().window_map(window->window, rank, &address, &bytes);
  return bytes;
}

void* towline_window_map_remote(const towline_window_t* window, int32_t rank) {
  if (window == nullptr || rank < 0 || rank >= window->communicator->size()) return nullptr;
  void* address = nullptr;
  uint64_t bytes = 0;
  window->communicator->table().window_map(window->window, rank, &address, &bytes);
  if (address == nullptr && bytes != 0) {
    capi::refuse(
        Status::kUnsupported,
        fmt::format("{}: rank {} is on another host, so its memory can't be mapped here; put and get "
                    "reach it",
                    __func__, rank));
  }
  return address;
}

int32_t towline_window_put(towline_window_t* window, int32_t rank, uint64_t offset, const void* from,
                           uint64_t bytes) {
  return capi::guard(__func__, [&] {
    if (bytes != 0) capi::need(from, "from");
    check_window(window, rank, offset, bytes);
    window->communicator->check_backend(
        window->communicator->table().window_put(window->window, rank, offset, from, bytes), "put");
    return Status::kOk;
  });
}

int32_t towline_window_get(towline_window_t* window, int32_t rank, uint64_t offset, void* to,
                           uint64_t bytes) {
  return capi::guard(__func__, [&] {
    if (bytes != 0) capi::need(to, "to");
    check_window(window, rank, offset, bytes);
    window->communicator->check_backend(
        window->communicator->table().window_get(window->window, rank, offset, to, bytes), "get");
    return Status::kOk;
  });
}

int32_t towline_window_signal(towline_window_t* window, int32_t rank) {
  return capi::guard(__func__, [&] {
    check_window(window, rank, 0, 0);
    window->communicator->check_backend(window->communicator->table().window_signal(window->window, rank),
                                        "signal");
    return Status::kOk;
  });
}

int32_t towline_window_wait_signal(towline_window_t* window, int32_t rank, uint64_t timeout_ns) {
  return capi::guard(__func__, [&] {
    check_window(window, rank, 0, 0);
    const Deadline deadline = Deadline::after(monotonic_now_ns(), timeout_ns);
    const int32_t status =
        window->communicator->table().window_wait_signal(window->window, rank, deadline.ns());
    if (status == TOWLINE_NOT_YET)
      fail(Status::kNotYet, "no signal of rank {} came within {} s", rank,
           static_cast<double>(timeout_ns) / kSecondNs);
    window->communicator->check_backend(status, "wait_signal");
    return Status::kOk;
  });
}

int32_t towline_window_issue(towline_window_t* window, const towline_window_call_t* given,
                             uint64_t timeout_ns, void* stream) {
  return capi::guard(__func__, [&] {
    capi::need(given, "call");
    // Programs compiled before signals had channels give a shorter struct.
    if (given->struct_size < offsetof(towline_window_call_t, channel) || given->struct_size > 4096)
      fail(Status::kInvalidArgument, "call.struct_size is {}; set it to sizeof the struct",
           given->struct_size);
    towline_window_call_t copy = {};
    capi::refuse_newer_fields(given, given->struct_size, sizeof copy, "call");
    std::memcpy(&copy, given, std::min(given->struct_size, sizeof copy));
    copy.struct_size = sizeof copy;
    const towline_window_call_t* const call = &copy;
    const bool moves = call->op == TOWLINE_WINDOW_PUT || call->op == TOWLINE_WINDOW_GET;
    check_window(window, call->rank, moves ? call->offset : 0, moves ? call->bytes : 0);
    const auto& table = window->communicator->table();
    if (table.window_issue == nullptr)
      fail(Status::kUnsupported, "the window is not in memory of a GPU: it has no operations on streams");
    if (timeout_ns == 0) timeout_ns = window->communicator->timeout_ns();
    window->communicator->check_backend(table.window_issue(window->window, call, timeout_ns, stream),
                                        "window");
    return Status::kOk;
  });
}

int32_t towline_window_symmetric(towline_window_t* window, void* symmetric, size_t bytes) {
  return capi::guard(__func__, [&] {
    capi::need(symmetric, "symmetric");
    check_window(window, 0, 0, 0);
    const auto& table = window->communicator->table();
    if (table.window_symmetric == nullptr)
      fail(Status::kUnsupported, "the window is not in memory of a GPU: kernels can't use it");
    window->communicator->check_backend(table.window_symmetric(window->window, symmetric, bytes), "window");
    return Status::kOk;
  });
}

// ---- Backends

int32_t towline_collective_backend_register(const char* name, const void* table) {
  return capi::guard(__func__, [&] {
    capi::need(name, "name");
    capi::need(table, "table");
    collectives::register_backend(name, static_cast<const towline_collective_table_v1_t*>(table));
    return Status::kOk;
  });
}

int32_t towline_collective_backend_load(const char* name, const char* path) {
  return capi::guard(__func__, [&] {
    capi::need(name, "name");
    capi::need(path, "path");
    collectives::load_backend(name, path);
    return Status::kOk;
  });
}

int32_t towline_collective_backends(char* text, size_t capacity, size_t* needed) {
  return capi::guard(__func__, [&] {
    std::string names;
    for (const std::string& name : collectives::backend_names()) names += (names.empty() ? "" : ",") + name;
    return give_text(names, text, capacity, needed);
  });
}

}  // extern "C"
