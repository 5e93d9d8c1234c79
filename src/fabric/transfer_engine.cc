#include "fabric/transfer_engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/error.h"

namespace towline::fabric {

struct TransferEngine::Slot {
  uint32_t index = 0;
  uint32_t generation = 1;
  bool used = false;
  bool released = false;
  Status status = Status::kInProgress;
  bool fenced = false;
  uint32_t fences = 0;
  Handle transfer;  // the engine's
  std::vector<uint8_t> message;
  std::function<void(Status)> done;
  // What the engine reads while it moves.
  PageList pages;
  std::size_t given = 0;
  towline_segment one{};
  const LocalMemory* local = nullptr;
  const RemoteMemory* remote = nullptr;

  static std::size_t next_pages(void* context, towline_segment* out, std::size_t capacity) {
    Slot& slot = *static_cast<Slot*>(context);
    const PageList& pages = slot.pages;
    const std::size_t count = std::min(capacity, pages.local_pages.size() - slot.given);
    const uint64_t local = pages.local->address + pages.local_offset;
    const uint64_t remote = pages.remote->address + pages.remote_offset;
    for (std::size_t i = 0; i < count; ++i, ++slot.given)
      out[i] = {local + pages.local_pages[slot.given] * pages.local_stride,
                remote + pages.remote_pages[slot.given] * pages.remote_stride, pages.page_bytes, 0, 0};
    return count;
  }
  static std::size_t next_one(void* context, towline_segment* out, std::size_t capacity) {
    Slot& slot = *static_cast<Slot*>(context);
    if (slot.given != 0 || capacity == 0) return 0;
    slot.given = 1;
    out[0] = slot.one;
    return 1;
  }
};

// Told to the application without the lock.
struct TransferEngine::Event {
  std::function<void(Status)> done;
  Status status = Status::kOk;
  Handle peer;
  bool is_lost = false;
  std::string why;
  std::vector<uint8_t> message;
};

TransferEngine::TransferEngine(std::vector<std::unique_ptr<Domain>> domains, TransferEngineOptions options)
    : options_(std::move(options)) {
  engine_ = std::make_unique<Engine>(options_.engine, std::move(domains), static_cast<EngineHost&>(*this));
  carrier_ = std::make_unique<Carrier>(*engine_, options_.carrier);
  counters_.reserve(1024);
  wake_ = UniqueFd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_) fail_errno(errno, "the engine's thread can't be woken");
  thread_ = std::thread([this] { run(); });
}

TransferEngine::~TransferEngine() {
  closing_ = true;
  wake();
  thread_.join();
  auto held = lock();
  for (auto& slot : slots_) {
    if (!slot->used || slot->status != Status::kInProgress) continue;
    slot->status = Status::kClosed;
    if (slot->done) events_.push_back({std::move(slot->done), Status::kClosed, {}, false, {}, {}});
  }
  carrier_.reset();
  engine_->close();
  for (const auto& memory : memories_) engine_->deregister_memory(*memory);
  engine_.reset();
  deliver(held);
}

// The engine's thread holds the lock most of the time; it gives way to those who are announced here.
std::unique_lock<std::mutex> TransferEngine::lock() const {
  waiting_.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock held{mutex_};
  waiting_.fetch_sub(1, std::memory_order_relaxed);
  return held;
}

void TransferEngine::wake() noexcept {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

void TransferEngine::run() noexcept {
  uint64_t last_event_ns = monotonic_now_ns();
  while (!closing_) {
    std::unique_lock held{mutex_};
    const std::size_t happened = turn();
    const uint64_t timer_ns = std::min(engine_->next_timer_ns(), carrier_->next_timer_ns());
    const uint64_t now_ns = monotonic_now_ns();
    if (happened != 0) last_event_ns = now_ns;
    deliver(held);
    const bool spin = now_ns - last_event_ns < options_.spin_ns;
    if (!spin) asleep_.store(true, std::memory_order_seq_cst);
    held.unlock();
    if (!spin) sleep(timer_ns);
    while (waiting_.load(std::memory_order_relaxed) != 0 && !closing_) sched_yield();
  }
}

std::size_t TransferEngine::turn() noexcept {
  const uint64_t now_ns = monotonic_now_ns();
  const std::size_t happened = carrier_->progress(now_ns);
  return happened + engine_->progress(now_ns);
}

// Calls out what has been gathered. Gives the lock up meanwhile.
void TransferEngine::deliver(std::unique_lock<std::mutex>& held) noexcept {
  if (events_.empty()) return;
  std::swap(events_, delivering_);
  held.unlock();
  for (Event& event : delivering_) {
    if (event.done) {
      event.done(event.status);
    } else if (event.is_lost) {
      if (options_.on_lost) options_.on_lost(event.peer, event.why);
    } else if (options_.on_message) {
      options_.on_message(event.peer, event.message);
    }
  }
  delivering_.clear();
  held.lock();
}

// Rails without a descriptor are polled: briefly while something is under way, else a thousand times a second.
void TransferEngine::sleep(uint64_t timer_ns) noexcept {
  std::vector<int> fds;
  bool armed = false;
  {
    std::unique_lock held{mutex_};
    engine_->event_fds(fds);
    armed = engine_->arm();
  }
  std::vector<pollfd> wanted{{wake_.get(), POLLIN, 0}, {carrier_->event_fd(), POLLIN, 0}};
  for (const int fd : fds) wanted.push_back({fd, POLLIN, 0});
  const uint64_t now_ns = monotonic_now_ns();
  uint64_t sleep_ns = timer_ns == kNoDeadline ? kSecondNs : timer_ns > now_ns ? timer_ns - now_ns : 0;
  if (!armed) sleep_ns = std::min<uint64_t>(sleep_ns, timer_ns == kNoDeadline ? kMillisecondNs : 0);
  const timespec limit{static_cast<time_t>(sleep_ns / kSecondNs), static_cast<long>(sleep_ns % kSecondNs)};
  ppoll(wanted.data(), wanted.size(), &limit, nullptr);
  asleep_.store(false, std::memory_order_seq_cst);
  uint64_t count = 0;
  (void)!read(wake_.get(), &count, sizeof count);
}

// --- What the engine tells -----------------------------------------------------------------------------

void TransferEngine::complete(uint64_t cookie, const TransferResult& result) noexcept {
  Slot& slot = *slots_[cookie];
  slot.status = result.status;
  slot.fences = result.fences;
  slot.fenced = result.fences == kFencedBoth;
  if (slot.done) events_.push_back({std::move(slot.done), result.status, {}, false, {}, {}});
  slot.done = nullptr;
  changed_.notify_all();
  free_if_over(slot);
}

void TransferEngine::fenced(uint64_t cookie, uint32_t fences) noexcept {
  Slot& slot = *slots_[cookie];
  slot.fences = fences;
  slot.fenced = true;
  changed_.notify_all();
  free_if_over(slot);
}

void TransferEngine::counted(Handle, uint32_t immediate, uint32_t count) noexcept {
  if (counters_.size() >= options_.max_counters && !counters_.contains(immediate)) return;
  counters_[immediate] += count;
  changed_.notify_all();
}

void TransferEngine::received(Handle peer, std::span<const uint8_t> message) noexcept {
  events_.push_back({nullptr, Status::kOk, peer, false, {}, {message.begin(), message.end()}});
}

void TransferEngine::lost(Handle peer, Status, const std::string& why) noexcept {
  events_.push_back({nullptr, Status::kPeerLost, peer, true, why, {}});
}

void TransferEngine::send_control(Handle peer, std::span<const uint8_t> message) noexcept {
  if (carrier_ != nullptr) carrier_->send(peer, message);
}

// --- What applications call ----------------------------------------------------------------------------

std::vector<uint8_t> TransferEngine::address() const {
  const auto held = lock();
  return encode(carrier_->address());
}

Handle TransferEngine::connect(std::span<const uint8_t> address) {
  const auto decoded = decode_carrier_address(address);
  if (!decoded) fail(Status::kProtocol, "these {} bytes are no address of an engine", address.size());
  const auto held = lock();
  const Handle peer = carrier_->connect(*decoded);
  wake();
  return peer;
}

void TransferEngine::disconnect(Handle peer) {
  const auto held = lock();
  carrier_->disconnect(peer);
}

const LocalMemory* TransferEngine::register_memory(const MemoryToRegister& memory) {
  const auto held = lock();
  memories_.push_back(std::make_unique<LocalMemory>(engine_->register_memory(memory)));
  return memories_.back().get();
}

void TransferEngine::deregister_memory(const LocalMemory* memory) {
  const auto held = lock();
  const auto found = std::find_if(memories_.begin(), memories_.end(),
                                  [&](const auto& known) { return known.get() == memory; });
  if (found == memories_.end()) fail(Status::kNotFound, "this memory is not registered here");
  for (const auto& slot : slots_)
    if (slot->used && !slot->fenced && slot->local == memory)
      fail(Status::kBusy, "a transfer that is not fenced uses this memory");
  engine_->deregister_memory(**found);
  memories_.erase(found);
}

std::vector<uint8_t> TransferEngine::descriptor(const LocalMemory& memory) {
  return encode(Engine::describe(memory));
}

RemoteMemory TransferEngine::import(std::span<const uint8_t> descriptor) {
  const auto memory = decode_memory(descriptor);
  if (!memory) fail(Status::kProtocol, "these {} bytes describe no memory", descriptor.size());
  return *memory;
}

namespace {

// Whether the pages lie in `bytes`.
bool pages_fit(std::span<const uint32_t> pages, uint64_t page_bytes, uint64_t stride, uint64_t offset,
               uint64_t bytes) noexcept {
  if (offset > bytes || page_bytes > bytes - offset) return false;
  const uint32_t last = *std::max_element(pages.begin(), pages.end());
  return stride == 0 || last <= (bytes - offset - page_bytes) / stride;
}

bool permits(TransferOp op, const RemoteMemory& remote) noexcept {
  return op == TransferOp::kWrite ? remote.writable : remote.readable;
}

}  // namespace

Status TransferEngine::paged(TransferOp op, Handle peer, const PageList& given,
                             const TransferOptions& options, Handle* number) {
  PageList pages = given;
  if (op == TransferOp::kNone || pages.local == nullptr || pages.remote == nullptr || pages.page_bytes == 0 ||
      pages.local_pages.empty())
    return Status::kInvalidArgument;
  if (pages.local_pages.size() != pages.remote_pages.size()) return Status::kMismatch;
  if (pages.local_stride == 0) pages.local_stride = pages.page_bytes;
  if (pages.remote_stride == 0) pages.remote_stride = pages.page_bytes;
  if (!pages_fit(pages.local_pages, pages.page_bytes, pages.local_stride, pages.local_offset,
                 pages.local->bytes) ||
      !pages_fit(pages.remote_pages, pages.page_bytes, pages.remote_stride, pages.remote_offset,
                 pages.remote->bytes) ||
      pages.page_bytes > UINT64_MAX / pages.local_pages.size())
    return Status::kOutOfRange;
  if (!permits(op, *pages.remote)) return Status::kPermissionDenied;
  const auto held = lock();
  Slot* slot = take_slot();
  if (slot == nullptr) return Status::kAgain;
  slot->pages = pages;
  slot->local = pages.local;
  slot->remote = pages.remote;
  TransferRequest request;
  request.peer = peer;
  request.op = op;
  request.segments = {Slot::next_pages, slot};
  request.bytes = pages.page_bytes * pages.local_pages.size();
  return start(*slot, request, options, number);
}

Status TransferEngine::single(TransferOp op, Handle peer, const LocalMemory& local, uint64_t local_offset,
                              const RemoteMemory& remote, uint64_t remote_offset, uint64_t bytes,
                              const TransferOptions& options, Handle* number) {
  if (op == TransferOp::kNone || bytes == 0) return Status::kInvalidArgument;
  if (local_offset > local.bytes || bytes > local.bytes - local_offset || remote_offset > remote.bytes ||
      bytes > remote.bytes - remote_offset)
    return Status::kOutOfRange;
  if (!permits(op, remote)) return Status::kPermissionDenied;
  const auto held = lock();
  Slot* slot = take_slot();
  if (slot == nullptr) return Status::kAgain;
  slot->one = {local.address + local_offset, remote.address + remote_offset, bytes, 0, 0};
  slot->local = &local;
  slot->remote = &remote;
  TransferRequest request;
  request.peer = peer;
  request.op = op;
  request.segments = {Slot::next_one, slot};
  request.bytes = bytes;
  return start(*slot, request, options, number);
}

Status TransferEngine::signal(Handle peer, const TransferOptions& options, Handle* number) {
  const auto held = lock();
  Slot* slot = take_slot();
  if (slot == nullptr) return Status::kAgain;
  TransferRequest request;
  request.peer = peer;
  return start(*slot, request, options, number);
}

TransferEngine::Slot* TransferEngine::take_slot() {
  if (free_slots_.empty()) {
    // Those that are done and not released take slots too.
    if (slots_.size() >= std::size_t{4} * options_.engine.max_transfers) return nullptr;
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->index = free_slots_.back();
  }
  Slot* slot = slots_[free_slots_.back()].get();
  free_slots_.pop_back();
  slot->used = true;
  slot->released = slot->fenced = false;
  slot->status = Status::kInProgress;
  slot->given = 0;
  slot->local = nullptr;
  slot->remote = nullptr;
  return slot;
}

Status TransferEngine::start(Slot& slot, TransferRequest& request, const TransferOptions& options,
                             Handle* number) {
  slot.message.assign(options.message.begin(), options.message.end());
  slot.done = options.done;
  request.local = &slot.local;
  request.remote = &slot.remote;
  request.immediate = options.immediate;
  request.count = options.count;
  request.message = slot.message;
  request.has_message = options.has_message;
  request.deadline_ns = Deadline::after(monotonic_now_ns(), options.timeout_ns).ns();
  request.cookie = slot.index;
  const Status status = engine_->submit(request, &slot.transfer);
  if (status != Status::kInProgress) {
    slot.done = nullptr;
    slot.status = status;
    slot.released = slot.fenced = true;
    free_if_over(slot);
    return status;
  }
  if (number != nullptr) {
    *number = {slot.index, slot.generation};
  } else {
    slot.released = true;
  }
  if (asleep_.load(std::memory_order_seq_cst)) wake();
  return status;
}

void TransferEngine::free_if_over(Slot& slot) noexcept {
  if (!slot.used || !slot.released || !slot.fenced) return;
  slot.used = false;
  if (++slot.generation == 0) slot.generation = 1;
  free_slots_.push_back(slot.index);
}

TransferEngine::Slot* TransferEngine::find(Handle number) const {
  if (number.index >= slots_.size()) return nullptr;
  Slot& slot = *slots_[number.index];
  return slot.used && !slot.released && slot.generation == number.generation ? &slot : nullptr;
}

Status TransferEngine::poll(Handle number) const {
  const auto held = lock();
  const Slot* slot = find(number);
  return slot == nullptr ? Status::kStale : slot->status;
}

namespace {

std::chrono::steady_clock::time_point until(uint64_t timeout_ns) {
  constexpr uint64_t kLongest = 365ull * 24 * 3600 * kSecondNs;
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds{std::min(timeout_ns, kLongest)};
}

}  // namespace

Status TransferEngine::wait(Handle number, uint64_t timeout_ns) {
  auto held = lock();
  const auto over = [&] {
    const Slot* slot = find(number);
    return slot == nullptr || slot->status != Status::kInProgress;
  };
  changed_.wait_until(held, until(timeout_ns), over);
  const Slot* slot = find(number);
  return slot == nullptr ? Status::kStale : slot->status;
}

Status TransferEngine::wait_fenced(Handle number, uint64_t timeout_ns) {
  auto held = lock();
  const auto over = [&] {
    const Slot* slot = find(number);
    return slot == nullptr || slot->fenced;
  };
  if (!changed_.wait_until(held, until(timeout_ns), over)) return Status::kTimedOut;
  const Slot* slot = find(number);
  if (slot == nullptr) return Status::kStale;
  return slot->fences == kFencedBoth ? Status::kOk : Status::kPeerLost;
}

void TransferEngine::cancel(Handle number) {
  const auto held = lock();
  if (Slot* slot = find(number); slot != nullptr && slot->status == Status::kInProgress) {
    engine_->cancel(slot->transfer);
    wake();
  }
}

void TransferEngine::release(Handle number) {
  const auto held = lock();
  if (Slot* slot = find(number)) {
    slot->released = true;
    free_if_over(*slot);
  }
}

uint64_t TransferEngine::counter(uint32_t immediate) const {
  const auto held = lock();
  const auto found = counters_.find(immediate);
  return found == counters_.end() ? 0 : found->second;
}

Status TransferEngine::wait_counter(uint32_t immediate, uint64_t value, uint64_t timeout_ns) {
  auto held = lock();
  const auto reached = [&] {
    const auto found = counters_.find(immediate);
    return (found == counters_.end() ? 0 : found->second) >= value;
  };
  return changed_.wait_until(held, until(timeout_ns), reached) ? Status::kOk : Status::kTimedOut;
}

std::string TransferEngine::describe() const {
  const auto held = lock();
  return engine_->describe();
}

}  // namespace towline::fabric
