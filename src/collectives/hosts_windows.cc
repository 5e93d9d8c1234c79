#include "collectives/hosts_windows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "agent/agent.h"
#include "base/error.h"
#include "collectives/hosts_backend.h"
#include "collectives/hosts_hop.h"
#include "rendezvous/exchange.h"

namespace towline::collectives {
namespace {

constexpr uint64_t kSliceNs =
    20 * kMillisecondNs;  // of a wait, after which it looks whether the communicator closes

}  // namespace

void HostsWindows::enter(uint64_t number, std::shared_ptr<AgentWindow> window) {
  const std::lock_guard lock(mutex_);
  windows_[number] = std::move(window);
}

void HostsWindows::leave(uint64_t number) {
  const std::lock_guard lock(mutex_);
  windows_.erase(number);
}

size_t HostsWindows::strands() const {
  const std::lock_guard lock(mutex_);
  return strands_.size();
}

HostsWindows::Strand& HostsWindows::strand_to(int peer, uint64_t what) {
  const std::lock_guard lock(mutex_);
  return strands_.try_emplace({peer, what}, *this, peer).first->second;
}

void HostsWindows::register_staging(Strand& strand) {
  strand.region = cpu_.window_agent(true)->own_regions().add_private(strand.memory, 2 * half_);
}

// One piece crosses while the GPU works on the one before or after it. What follows in the stream comes after the last one has
// crossed.
std::vector<towline_collective_step_t> HostsWindows::cut_for(const Strand& strand, uint64_t window,
                                                             const towline_window_call_t& call,
                                                             uint64_t timeout_ns) const {
  std::vector<towline_collective_step_t> steps;
  const auto add = [&](uint32_t kind) -> towline_collective_step_t& {
    towline_collective_step_t& step = steps.emplace_back();
    step.kind = kind;
    step.strand = strand.number;
    return step;
  };
  const bool puts = call.op == TOWLINE_WINDOW_PUT;
  const bool moves = puts || call.op == TOWLINE_WINDOW_GET;
  const uint64_t pieces = moves ? (call.bytes + half_ - 1) / half_ : 1;
  const auto bytes_of = [&](uint64_t i) { return moves ? std::min(half_, call.bytes - i * half_) : 0; };
  const auto move = [&](uint64_t i) {
    if (!moves) return;
    void* const stage = static_cast<uint8_t*>(strand.memory) + (i & 1) * half_;
    void* const data = static_cast<uint8_t*>(call.address) + i * half_;
    towline_collective_step_t& step = add(TOWLINE_STEP_MOVE);
    step.bytes = bytes_of(i);
    step.from = puts ? data : stage;
    step.to = puts ? stage : data;
  };
  const auto post = [&](uint64_t i) {
    const Hop hop = {window,       call.op,   call.offset + i * half_, (i & 1) * half_, bytes_of(i),
                     call.channel, timeout_ns};
    std::memcpy(add(TOWLINE_STEP_POST).words, &hop, sizeof hop);
  };
  for (uint64_t i = 0; i <= pieces; ++i) {
    if (puts && i < pieces) move(i);
    if (i < pieces) post(i);
    if (i == 0) continue;
    add(TOWLINE_STEP_AWAIT);
    if (!puts) move(i - 1);
  }
  return steps;
}

// ---- On the thread of a strand

int32_t HostsWindows::carry(void* context, const uint64_t* words) {
  const auto& strand = *static_cast<const Strand*>(context);
  return run_hop<Hop>(strand.owner.cpu_, "a window", words,
                      [&](const Hop& hop) { return strand.owner.run(strand, hop); });
}

Status HostsWindows::run(const Strand& strand, const Hop& hop) {
  if (cpu_.breaker().broken()) return cpu_.breaker().status();
  std::shared_ptr<AgentWindow> window;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = windows_.find(hop.window); found != windows_.end()) window = found->second;
  }
  if (window == nullptr)
    return cpu_.breaker().raise(
        Status::kClosed,
        fmt::format("rank {} closed a window before its streams had done with it", cpu_.rank()));
  const auto rank = static_cast<size_t>(strand.peer);
  switch (hop.op) {
    case TOWLINE_WINDOW_PUT:
      return window->put(rank, hop.there, {*strand.region, hop.here}, hop.bytes);
    case TOWLINE_WINDOW_GET:
      return window->get(rank, hop.there, {*strand.region, hop.here}, hop.bytes);
    case TOWLINE_WINDOW_SIGNAL:
      return window->signal(rank, hop.channel);
    default:
      return await(*window, strand, hop);
  }
}

Status HostsWindows::await(AgentWindow& window, const Strand& strand, const Hop& hop) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), hop.timeout_ns);
  for (;;) {
    const uint64_t now = monotonic_now_ns();
    const Deadline soon = Deadline::at(std::min(Deadline::after(now, kSliceNs).ns(), deadline.ns()));
    const Status status = window.wait_signal(static_cast<size_t>(strand.peer), soon, hop.channel);
    if (status != Status::kNotYet) return status;
    if (closing_) return Status::kCancelled;  // nobody waits for it any more
    if (deadline.passed(monotonic_now_ns()))
      return cpu_.breaker().raise(
          {Status::kTimedOut,
           fmt::format("rank {} timed out in waiting for a signal of rank {}", cpu_.rank(), strand.peer),
           {strand.peer}});
  }
}

// ---- A window

HostsWindow::HostsWindow(HostsBackend& backend, void* address, uint64_t bytes, uint64_t number,
                         Deadline deadline)
    : backend_(backend), number_(number) {
  std::string problem;
  try {
    backend_.check_inside(backend_.inside_table().window_open(backend_.inside(), address, bytes, number,
                                                              deadline.ns(), &inside_));
  } catch (const Error& error) {
    problem = error.message();
  }
  HostStore store(*backend_.host());
  const CpuBackend& cpu = backend_.cpu();
  try {
    far_ = AgentWindow::open_all(
        std::move(problem), [&] { return make_far(); },
        [&](size_t rank) { return backend_.index_here(static_cast<int32_t>(rank)) < 0; },
        [&](int round, std::span<const uint8_t> mine) {
          const std::string key = fmt::format("window/{}/{}", number, round == 0 ? "offers" : "problems");
          return rendezvous::exchange(store, key, cpu.rank(), cpu.size(), mine, deadline);
        });
  } catch (const Error&) {
    close_inside(number, deadline);
    throw;
  }
  backend_.windows().enter(number, far_);
}

std::unique_ptr<AgentWindow> HostsWindow::make_far() {
  CpuBackend& cpu = backend_.cpu();
  AgentWindow::Memory memory;
  memory.kind = TOWLINE_MEMORY_VRAM;
  memory.device = backend_.gpu();
  map(cpu.rank(), memory.address, memory.bytes);
  return std::make_unique<AgentWindow>(cpu.window_agent(true), cpu.breaker(), static_cast<size_t>(cpu.rank()),
                                       static_cast<size_t>(cpu.size()), memory, HostsWindows::kChannels);
}

HostsWindow::~HostsWindow() {
  backend_.windows().leave(number_);
  close_inside(number_, Deadline::after(monotonic_now_ns(), kSecondNs));
}

void HostsWindow::close_inside(uint64_t number, Deadline deadline) noexcept {
  towline_collective_window* const closing = std::exchange(inside_, nullptr);
  if (closing != nullptr) (void)backend_.inside_table().window_close(closing, number, deadline.ns());
}

void HostsWindow::close(uint64_t number, Deadline deadline) {
  towline_collective_t barrier = {};
  barrier.struct_size = sizeof barrier;
  barrier.op = TOWLINE_COLLECTIVE_BARRIER;
  check_far(backend_.perform(barrier, number, deadline));
  backend_.windows().leave(number_);
  std::string why;
  if (far_->close(deadline, why) != Status::kOk)
    fail(Status::kTimedOut, "the window's memory is still in use: {}", why);
  close_inside(number, deadline);
}

void HostsWindow::map(int32_t rank, void*& address, uint64_t& bytes) const noexcept {
  const int32_t index = backend_.index_here(rank);
  address = nullptr;
  if (index < 0)
    bytes = far_->bytes(static_cast<size_t>(rank));
  else
    (void)backend_.inside_table().window_map(inside_, index, &address, &bytes);
}

// Throws the reason why the communicator broke.
void HostsWindow::check_far(Status status) const {
  if (is_error(status)) fail(status, "{}", backend_.breaker().breakage().text);
}

// Between a GPU's memory and a rank of another host.
void HostsWindow::move(uint32_t op, int32_t rank, uint64_t offset, void* address, uint64_t bytes) {
  if (bytes == 0) return;
  const auto& table = backend_.inside_table();
  const auto check = [this](int32_t status) { backend_.check_inside(status); };
  const towline_window_call_t call = {sizeof call, op, rank, offset, address, bytes, 0};
  const auto steps = backend_.windows().cut(backend_.inside(), number_, call, UINT64_MAX, check);
  towline_collective_message* message = nullptr;
  check(table.start_steps(backend_.inside(), steps.data(), steps.size(), &message));
  int32_t status = TOWLINE_IN_PROGRESS;
  while ((status = table.message_test(backend_.inside(), message)) == TOWLINE_IN_PROGRESS)
    table.message_wait(backend_.inside(), monotonic_now_ns() + kMillisecondNs);
  table.message_release(backend_.inside(), message);
  check(status);
}

void HostsWindow::put(int32_t rank, uint64_t offset, const void* from, uint64_t bytes) {
  const int32_t index = backend_.index_here(rank);
  if (index < 0) return move(TOWLINE_WINDOW_PUT, rank, offset, const_cast<void*>(from), bytes);
  backend_.check_inside(backend_.inside_table().window_put(inside_, index, offset, from, bytes));
}

void HostsWindow::get(int32_t rank, uint64_t offset, void* to, uint64_t bytes) {
  const int32_t index = backend_.index_here(rank);
  if (index < 0) return move(TOWLINE_WINDOW_GET, rank, offset, to, bytes);
  backend_.check_inside(backend_.inside_table().window_get(inside_, index, offset, to, bytes));
}

void HostsWindow::signal(int32_t rank) {
  const int32_t index = backend_.index_here(rank);
  if (index < 0) return check_far(far_->signal(static_cast<size_t>(rank)));
  backend_.check_inside(backend_.inside_table().window_signal(inside_, index));
}

Status HostsWindow::wait_signal(int32_t rank, Deadline deadline) {
  const int32_t index = backend_.index_here(rank);
  const Status status =
      index < 0 ? far_->wait_signal(static_cast<size_t>(rank), deadline)
                : Status{backend_.inside_table().window_wait_signal(inside_, index, deadline.ns())};
  if (status == Status::kNotYet) return status;
  if (index < 0)
    check_far(status);
  else
    backend_.check_inside(static_cast<int32_t>(status));
  return status;
}

void HostsWindow::issue(const towline_window_call_t& call, uint64_t timeout_ns, void* stream) {
  if (backend_.breaker().broken()) check_far(backend_.breaker().status());
  const auto& table = backend_.inside_table();
  const auto check = [this](int32_t status) { backend_.check_inside(status); };
  const int32_t index = backend_.index_here(call.rank);
  if (index >= 0) {
    towline_window_call_t here = call;
    here.rank = index;
    return check(table.window_issue(inside_, &here, timeout_ns, stream));
  }
  if (call.op > TOWLINE_WINDOW_WAIT_SIGNAL)
    fail(Status::kInvalidArgument, "there is no operation {} of windows", call.op);
  if (call.channel >= HostsWindows::kChannels)
    fail(Status::kOutOfRange, "channel {} is out of range for signals, which have {}", call.channel,
         HostsWindows::kChannels);
  const bool moves = call.op == TOWLINE_WINDOW_PUT || call.op == TOWLINE_WINDOW_GET;
  if (moves && call.bytes == 0) return;
  const auto steps = backend_.windows().cut(backend_.inside(), number_, call, timeout_ns, check);
  check(
      table.issue_steps(backend_.inside(), steps.data(), steps.size(), number_, timeout_ns, stream, nullptr));
}

void HostsWindow::symmetric(void* symmetric, size_t bytes) const {
  backend_.check_inside(backend_.inside_table().window_symmetric(inside_, symmetric, bytes));
  fail(Status::kUnsupported, "kernels reach the GPUs of one host: this window is of {} hosts",
       backend_.hosts());
}

}  // namespace towline::collectives
