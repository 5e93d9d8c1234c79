#include "collectives/communicator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/check.h"
#include "base/coarse_clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/per_thread.h"
#include "base/sync/spin.h"
#include "collectives/backend.h"
#include "collectives/call_out.h"
#include "collectives/calls/types.h"
#include "collectives/checks.h"
#include "collectives/hosts_backend.h"
#include "collectives/interrupt.h"
#include "collectives/paired_backend.h"
#include "collectives/reduce.h"
#include "rendezvous/exchange.h"
#include "rendezvous/meeting.h"
#include "secure/keys.h"

namespace towline::collectives {
namespace {

std::atomic<uint64_t> forks{0};
void count_forks() {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (registered != 0) fail_errno(registered, "cannot watch for forks");
}

std::atomic<uint64_t> op_ids{0};

// The error message of the current call into the backend, on its thread.
thread_local constinit ThreadText backend_text;

// What a thread was last told of a setting and of a variable: valid until it asks again.
struct Told {
  std::string setting;
  std::string variable;
};

// Counts the communicators of a name and size that each rank of this process made in a store. The count is
// part of the meeting key, so that a new communicator does not find keys of an old one. It is kept by rank,
// since threads may be ranks, and by store and size: all ranks must get the same count, but a process may
// have formed other communicators elsewhere or alone.
uint64_t count_of(const CommunicatorOptions& options, const rendezvous::Store& store) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, std::string, int, int>, uint64_t> counts;
  const std::lock_guard lock(mutex);
  return counts[{store.describe(), options.name, options.size, options.rank}]++;
}

}  // namespace

// ---- Life

std::shared_ptr<Communicator> Communicator::create(CommunicatorOptions options,
                                                   std::shared_ptr<rendezvous::Store> store,
                                                   std::shared_ptr<Config> config) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    fail(Status::kInvalidArgument, "rank {} is out of range for a communicator of {}", options.rank,
         options.size);
  count_forks();
  const uint64_t count = count_of(options, *store);
  std::string prefix = fmt::format("towline/{}/", options.name);
  std::shared_ptr<rendezvous::Store> meeting =
      std::make_shared<rendezvous::PrefixStore>(std::move(store), std::move(prefix));
  if (options.interrupted != nullptr)
    meeting = std::make_shared<AskingStore>(std::move(meeting), options.rank);
  if (options.backend != "fake") {
    const Deadline deadline = Deadline::after(monotonic_now_ns(), options.timeout_ns);
    const Interrupt interrupt(options.interrupted, options.interrupt_context);
    try {
      meeting = rendezvous::meet(std::move(meeting), options.rank, options.size, deadline, count);
    } catch (const Error& error) {
      fail(error.code(), "communicator {} did not form: {}", options.name, error.message());
    }
  } else {
    meeting = rendezvous::part_of(std::move(meeting), options.size, count);
  }
  return make(std::move(options), std::move(meeting), std::move(config));
}

// The backend "gpu" gives way to NCCL where it is asked to, or has to. Every rank learns of that alike.
std::shared_ptr<Communicator> Communicator::make(CommunicatorOptions options,
                                                 std::shared_ptr<rendezvous::Store> store,
                                                 std::shared_ptr<Config> config) {
  const Interrupt interrupt(options.interrupted, options.interrupt_context);
  constexpr const char* kSetting = "collectives.on_gpu";
  const auto hint = options.hints.find("on_gpu");
  std::string way = "gpu";
  if (options.backend == "gpu")
    way = hint != options.hints.end() ? hint->second : config->get_string(kSetting, "auto");
  if (way != "gpu" && way != "nccl" && way != "auto")
    fail(Status::kInvalidArgument, "{} = \"{}\": expected auto, gpu or nccl", kSetting, way);
  if (way == "nccl") options.backend = "nccl";
  // NCCL's connections are in the clear: with keys it has to be named.
  const bool keyed = std::ranges::any_of(secure::Keys::kSettings,
                                         [&](const char* key) { return !config->get_string(key).empty(); });
  if (keyed && options.backend == "nccl")
    TOWLINE_LOG(kWarning,
                "communicator {}: NCCL was named, and moves data in the clear, though secure.* is set",
                options.name);
  const std::string order = options.hints.contains("order")
                                ? options.hints["order"]
                                : config->get_string("tuning.collectives.order", "rank");
  if (order != "rank" && order != "any")
    fail(Status::kInvalidArgument,
         "tuning.collectives.order = \"{}\" (or the hint \"order\"): expected rank or any", order);
  if (order == "any") options.hints["order"] = order;  // backends read it there
  // Every attempt has keys of its own.
  const auto store_of = [&](const std::string& backend) {
    return std::make_shared<FormingStore>(std::make_shared<rendezvous::PrefixStore>(store, backend + "/"),
                                          options.rank);
  };
  std::vector<std::vector<int>> hosts;
  const auto find = [&] {
    if (options.size == 1 || find_backend(options.backend).issue_steps == nullptr) return;
    const Deadline deadline = Deadline::after(monotonic_now_ns(), options.timeout_ns);
    hosts = find_hosts(*store_of(options.backend), options.rank, options.size,
                       config->get_string("collectives.host", ""), deadline);
  };
  const auto telling = [&](const std::string& backend, const auto& step) {
    try {
      return step();
    } catch (const Error& error) {
      store_of(backend)->refuse(error);
      throw;
    }
  };
  telling(options.backend, find);
  const auto open_one = [&](const std::string& backend, const std::vector<std::vector<int>>& spread) {
    return telling(backend, [&] {
      CommunicatorOptions wanted = options;
      wanted.backend = backend;
      std::shared_ptr<Communicator> made(new Communicator(std::move(wanted), store_of(backend), config));
      if (spread.size() > 1) made->hosts_ = spread;
      made->open();
      return made;
    });
  };
  // NCCL may know a faster way between hosts than processors' memory.
  const bool nccl_first = way == "auto" && hosts.size() > 1 && !keyed;
  std::string reason;
  try {
    if (!nccl_first) return open_one(options.backend, hosts);
    reason = "its ranks are on several hosts";
  } catch (const Error& error) {
    if (way != "auto" || error.code() != Status::kUnsupported) throw;
    reason = error.message();
    if (keyed && hosts.size() != 1)
      fail(Status::kUnsupported,
           "{}; nor with NCCL: it moves data in the clear, and secure.* is set. {} = \"nccl\" uses it "
           "nevertheless",
           reason, kSetting);
  }
  std::shared_ptr<Communicator> made;
  try {
    made = open_one("nccl", {});
    reason.clear();
  } catch (const Error& error) {
    if (!nccl_first) fail(Status::kUnsupported, "{}; nor with NCCL: {}", reason, error.message());
    reason = error.message();
  }
  if (!nccl_first) return made;
  // NCCL on every rank, or on none.
  const Deadline deadline = Deadline::after(monotonic_now_ns(), options.timeout_ns);
  const auto reasons =
      rendezvous::exchange(*store, "nccl", options.rank, options.size,
                           {reinterpret_cast<const uint8_t*>(reason.data()), reason.size()}, deadline);
  for (const rendezvous::Bytes& text : reasons) {
    if (text.empty()) continue;
    if (made != nullptr) made->close();
    TOWLINE_LOG(kInfo, "communicator {}: between hosts without NCCL: {}", options.name,
                std::string(text.begin(), text.end()));
    return open_one(options.backend, hosts);
  }
  return made;
}

Communicator::Communicator(CommunicatorOptions options, std::shared_ptr<FormingStore> store,
                           std::shared_ptr<Config> config)
    : options_(std::move(options)),
      store_(std::move(store)),
      config_(std::move(config)),
      table_(&find_backend(options_.backend)),
      forks_(forks.load(std::memory_order_relaxed)),
      timeout_ns_(options_.timeout_ns),
      hints_(options_.hints),
      recorder_(options_.flight_records) {}

void Communicator::open() {
  host_.struct_size = sizeof host_;
  host_.context = this;
  host_.fail = [](void*, const char* text) { backend_text.set(text); };
  host_.broken = [](void* context, int32_t status, const char* text) {
    auto& communicator = *static_cast<Communicator*>(context);
    // A rank that leaves without a word breaks it, too, while nothing is issued here. What else comes so is an issued operation's.
    const Status why{status};
    const bool issued =
        communicator.table_->issue != nullptr && communicator.formed_.load(std::memory_order_acquire);
    if (issued && why != Status::kPeerLost)
      communicator.after_failure(why, text);
    else
      communicator.broken(why, text);
  };
  host_.store_set = [](void* context, const char* key, const void* value, size_t bytes) -> int32_t {
    try {
      static_cast<Communicator*>(context)->store_->set(key, {static_cast<const uint8_t*>(value), bytes});
      return TOWLINE_OK;
    } catch (const Error& error) {
      backend_text.set(error.message());
      return static_cast<int32_t>(error.code());
    }
  };
  host_.store_get = [](void* context, const char* key, uint64_t deadline_ns, void* value, size_t capacity,
                       size_t* bytes) -> int32_t {
    try {
      const rendezvous::Bytes found =
          static_cast<Communicator*>(context)->store_->get(key, Deadline::at(deadline_ns));
      std::copy_n(found.data(), std::min(capacity, found.size()), static_cast<uint8_t*>(value));
      *bytes = found.size();
      return TOWLINE_OK;
    } catch (const Error& error) {
      backend_text.set(error.message());
      return static_cast<int32_t>(error.code());
    }
  };
  host_.config = [](void* context, const char* key, const char* fallback) -> const char* {
    std::string& text = PerThread<Told>::get().setting;
    auto& self = *static_cast<Communicator*>(context);
    if (std::strcmp(key, "collectives.store_host") == 0) return (text = self.store_->local_host()).c_str();
    return (text = self.config_->get_string(key, fallback)).c_str();
  };
  host_.environment = [](void* context, const char* name) -> const char* {
    const auto found = static_cast<Communicator*>(context)->config_->environment(name);
    return found ? (PerThread<Told>::get().variable = *found).c_str() : nullptr;
  };
  host_.replayed = [](void* context, uint64_t op_id, uint32_t op, int32_t ended) {
    static_cast<Communicator*>(context)->call_hooks(TOWLINE_HOOK_REPLAY, nullptr, op, nullptr, op_id,
                                                    ended != 0 ? TOWLINE_OK : TOWLINE_IN_PROGRESS, nullptr,
                                                    nullptr, false);
  };
  towline_collective_open_args args = {};
  args.struct_size = sizeof args;
  args.host = &host_;
  args.name = options_.name.c_str();
  args.rank = options_.rank;
  args.size = options_.size;
  args.deadline_ns = Deadline::after(monotonic_now_ns(), options_.timeout_ns).ns();
  args.flags = options_.flags;
  std::vector<const char*> hints;
  for (const auto& [key, value] : hints_) {
    hints.push_back(key.c_str());
    hints.push_back(value.c_str());
  }
  hints.push_back(nullptr);
  args.hints = hints.data();
  backend_text.clear();
  const towline_collective_table_v1_t& inside = *table_;
  const bool paired = hosts_.empty() && inside.issue_steps != nullptr && options_.size > 1 &&
                      config_->get_string(kNcclFrom, "none") != "none";
  int32_t status = TOWLINE_OK;
  if (!hosts_.empty()) {
    table_ = &hosts_table();
    status = open_over_hosts(args, inside, hosts_, &backend_);
  } else if (paired) {
    paired_ = std::make_unique<const towline_collective_table_v1_t>(paired_table(inside));
    table_ = paired_.get();
    status = open_paired(args, inside, &backend_);
  } else {
    status = table_->open(&args, &backend_);
  }
  std::string reason = backend_text.empty() ? status_text(Status{status}) : backend_text.c_str();
  if (status >= 0) cpu_ = cpu_backend_of_one_host(*table_, *backend_);
  if (status >= 0 && table_->issue != nullptr) confirm(Deadline::at(args.deadline_ns), status, reason);
  store_->formed();
  formed_.store(status >= 0, std::memory_order_release);
  if (status >= 0) return;
  store_->refuse(Error(Status{status}, reason));
  if (const auto others = store_->others_failure()) {
    status = static_cast<int32_t>(others->code());
    reason = others->message();
  } else if (table_->issue != nullptr && !reason.starts_with("rank")) {
    reason = fmt::format("rank {}: {}", options_.rank, reason);
  }
  fail(Status{status}, "communicator {} did not form: {}", options_.name, reason);
}

// A rank that has all it needs learns whether the others have: on GPUs they meet in a kernel next, and would wait there.
void Communicator::confirm(Deadline deadline, int32_t& status, std::string& reason) {
  try {
    (void)rendezvous::exchange(*store_, "formed", options_.rank, options_.size, {}, deadline);
  } catch (const Error& error) {
    status = static_cast<int32_t>(error.code());
    reason = error.message();
    table_->abort(backend_, status, reason.c_str());
    table_->close(std::exchange(backend_, nullptr));
  }
}

Communicator::~Communicator() {
  if (backend_ != nullptr) close();
}

void Communicator::check_not_inside() const {
  if (CallOut::is_of(this))
    fail(Status::kBusy,
         "communicator {} can't be closed from its own hooks and works' functions: do it once they returned",
         options_.name);
}

void Communicator::finalize() {
  check_usable();
  check_not_inside();
  finalized_ = true;
  std::unique_lock lock(queue_mutex_);
  queue_changed_.wait(lock, [&] { return queued_.load() == 0; });
  lock.unlock();
  std::unique_lock active(active_mutex_);
  active_changed_.wait(active, [&] { return active_.empty(); });
}

void Communicator::close() {
  if (inherited()) return;
  check_not_inside();
  finalized_ = true;
  {
    std::unique_lock lock(queue_mutex_);
    queue_changed_.wait(lock, [&] { return queued_.load() == 0; });
    stopping_ = true;
  }
  queue_changed_.notify_all();
  {
    std::unique_lock active(active_mutex_);
    active_changed_.wait(active, [&] { return active_.empty(); });
    messages_stopping_ = true;
  }
  active_changed_.notify_all();
  if (runner_.joinable()) runner_.join();
  for (std::thread& mover : movers_) mover.join();
  // Works that the application still holds have ended and no longer need the backend.
  table_->close(backend_);
  backend_ = nullptr;
}

bool Communicator::inherited() const noexcept { return forks_ != forks.load(std::memory_order_relaxed); }

void Communicator::refuse_forked() const {
  if (inherited()) check_usable();
}

Status Communicator::usable_fast() const noexcept {
  if (inherited()) return Status::kForked;
  if (const int32_t status = broken_.load(std::memory_order_acquire); status != 0) return Status{status};
  return finalized_.load(std::memory_order_relaxed) ? Status::kClosed : Status::kOk;
}

Status Communicator::usable(std::string& text) const {
  const Status status = usable_fast();
  if (status == Status::kForked) {
    text = fmt::format("communicator {} belongs to the parent process: make a new one in the child",
                       options_.name);
  } else if (status == Status::kClosed && broken_ == 0) {
    text = fmt::format("communicator {} was finalized", options_.name);
  } else if (is_error(status)) {
    const std::lock_guard lock(state_mutex_);
    text = broken_text_;
  }
  return status;
}

void Communicator::check_usable() const {
  std::string text;
  const Status status = usable(text);
  if (is_error(status) && !(status == Status::kClosed && broken_ == 0)) fail(status, "{}", text);
}

Status Communicator::error(std::string* text) {
  if (broken_ == 0 && usable_fast() != Status::kForked && table_->look != nullptr && backend_ != nullptr) {
    begin_backend_call();
    std::string reason;
    if (const int32_t status = table_->look(backend_); status < 0) broken(failure(status, reason), reason);
  }
  std::string found;
  Status status = usable(found);
  if (status == Status::kClosed && broken_ == 0) {
    status = Status::kOk;
    found.clear();
  }
  if (text != nullptr) *text = std::move(found);
  return status;
}

void Communicator::abort(const std::string& reason) {
  refuse_forked();
  const std::string text =
      reason.empty()
          ? fmt::format("rank {} aborted communicator {}", options_.rank, options_.name)
          : fmt::format("rank {} aborted communicator {}: {}", options_.rank, options_.name, reason);
  table_->abort(backend_, TOWLINE_CANCELLED, text.c_str());
  broken(Status::kCancelled, text);
}

// Called by the backend once; an operation that failed may have reported the reason before.
void Communicator::broken(Status status, const std::string& text) {
  {
    const std::lock_guard lock(state_mutex_);
    if (broken_ == 0) {
      try {
        broken_text_ = text;
      } catch (const std::bad_alloc&) {  // the status says enough
      }
      broken_.store(static_cast<int32_t>(status), std::memory_order_release);
    }
  }
  if (!aborted_hooks_called_.exchange(true)) {
    call_hooks(TOWLINE_HOOK_ABORT, nullptr, TOWLINE_COLLECTIVE_BARRIER, nullptr, 0,
               static_cast<int32_t>(status), nullptr, text.c_str(), false);
    const std::lock_guard lock(state_mutex_);
    aborted_hooks_done_ = true;
    aborted_hooks_returned_.notify_all();
  }
}

void Communicator::set_hint(const std::string& key, const std::string& value) {
  const std::lock_guard lock(state_mutex_);
  hints_[key] = value;
}

std::string Communicator::info_json() {
  nlohmann::json info = {{"schema", TOWLINE_JSON_SCHEMA},
                         {"name", options_.name},
                         {"rank", options_.rank},
                         {"size", options_.size},
                         {"backend", options_.backend},
                         {"version", table_->version != nullptr ? table_->version : ""},
                         {"timeout_ns", timeout_ns()},
                         {"store", store_->describe()},
                         {"flight_records", options_.flight_records}};
  {
    const std::lock_guard lock(state_mutex_);
    info["hints"] = hints_;
    info["broken"] = broken_text_;
  }
  if (usable_fast() != Status::kForked && table_->describe != nullptr) {
    std::string text(65536, 0);
    size_t needed = 0;
    table_->describe(backend_, text.data(), text.size(), &needed);
    if (needed > text.size()) {
      text.resize(needed);
      table_->describe(backend_, text.data(), text.size(), &needed);
    }
    info["details"] = nlohmann::json::parse(text.c_str(), nullptr, false);
  }
  return info.dump();
}

// ---- Split

std::shared_ptr<Communicator> Communicator::split(const int32_t* ranks, size_t count, const char* name,
                                                  uint64_t timeout_ns) {
  std::string text;
  if (const Status status = usable(text); is_error(status)) fail(status, "{}", text);
  const uint32_t number = splits_++;
  if (count == 0) return nullptr;
  std::string members;
  int mine = -1;
  for (size_t i = 0; i < count; ++i) {
    if (ranks[i] < 0 || ranks[i] >= options_.size)
      fail(Status::kInvalidArgument, "split: no rank {} among {}", ranks[i], options_.size);
    if (std::find(ranks, ranks + i, ranks[i]) != ranks + i)
      fail(Status::kInvalidArgument, "split: rank {} is there twice", ranks[i]);
    if (ranks[i] == options_.rank) mine = static_cast<int>(i);
    members += fmt::format("{},", ranks[i]);
  }
  if (mine < 0)
    fail(Status::kInvalidArgument, "split: rank {} is not in its own list {}", options_.rank, members);
  CommunicatorOptions options = options_;
  options.name = name != nullptr ? name : fmt::format("{}.{}", options_.name, number);
  options.rank = mine;
  options.size = static_cast<int>(count);
  options.timeout_ns = timeout_ns != 0 ? timeout_ns : this->timeout_ns();
  {
    const std::lock_guard lock(state_mutex_);
    options.hints = hints_;
  }
  auto meeting = std::make_shared<rendezvous::PrefixStore>(
      store_, fmt::format("split/{}/{}/{}/", number, members, options.name));
  return make(std::move(options), std::move(meeting), config_);
}

// ---- Running

void Communicator::check_call(const towline_collective_t& call) const {
  collectives::check_call(call, options_.rank, options_.size);
  if (call.op == TOWLINE_COLLECTIVE_RECV && call.root == TOWLINE_ANY_RANK && !has_sources())
    fail(Status::kUnsupported, "recv: backend {} can't receive from any rank; name one", options_.backend);
}

// A long time is counted from the kernel's next tick, so that it is never too short.
Deadline Communicator::deadline_in(uint64_t timeout_ns) noexcept {
  constexpr uint64_t kLongNs = 1000 * kCoarseNs;
  return timeout_ns < kLongNs ? Deadline::after(monotonic_now_ns(), timeout_ns)
                              : Deadline::after(coarse_now_ns() + kCoarseNs, timeout_ns);
}

uint64_t Communicator::next_op_id() noexcept { return op_ids.fetch_add(1, std::memory_order_relaxed) + 1; }

uint64_t Communicator::timeout_of(const towline_collective_options_t* options) const noexcept {
  return options != nullptr && options->timeout_ns != 0 ? options->timeout_ns : timeout_ns();
}

// The message of a failure that the backend returned on this thread.
Status Communicator::failure(int32_t status, std::string& text) const noexcept {
  try {
    text = backend_text.empty() ? status_text(Status{status}) : backend_text.c_str();
  } catch (const std::bad_alloc&) {  // the status says enough
  }
  return Status{status};
}

void Communicator::check_backend(int32_t status, const char* what) const {
  if (status >= 0) return;
  fail(Status{status}, "{}: {}", what,
       backend_text.empty() ? status_text(Status{status}) : backend_text.c_str());
}

void Communicator::begin_backend_call() noexcept { backend_text.clear(); }

// An accepted operation failed, so the communicator is broken on all ranks.
void Communicator::after_failure(Status status, const std::string& text) noexcept {
  broken(status, text);
  if ((options_.flags & TOWLINE_COMMUNICATOR_ABORT_PROCESS) != 0 && status != Status::kCancelled) {
    // Another thread's hook may still write down what happened. It may need what this thread holds, so not for ever.
    if (!CallOut::is_of(this)) {
      std::unique_lock lock(state_mutex_);
      aborted_hooks_returned_.wait_for(lock, std::chrono::seconds{5}, [this] { return aborted_hooks_done_; });
    }
    // The last words are torchcomms', which programs look for.
    TOWLINE_LOG(kError, "communicator {}: {}. Aborting process due to {}", options_.name, text,
                status == Status::kTimedOut ? "timeout" : "error");
    std::abort();
  }
}

// What this rank gives, multiplied by its factor: each rank has its own, and they exchange a plain sum. Under perform_mutex_.
void Communicator::scale_input(towline_collective_t& call) {
  const uint64_t element = datatype_bytes(call.datatype);
  if (call.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER || call.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V) {
    uint64_t total = 0;
    for (int rank = 0; rank < options_.size; ++rank)
      total += call.input_counts != nullptr && call.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V
                   ? call.input_counts[rank]
                   : call.count;
    scaled_.resize(total * element);
    uint64_t at = 0;
    uint64_t behind = 0;
    for (int rank = 0; rank < options_.size; ++rank) {
      const uint64_t count =
          call.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER_V ? call.input_counts[rank] : call.count;
      const auto* from =
          call.inputs != nullptr
              ? static_cast<const uint8_t*>(call.inputs[rank])
              : static_cast<const uint8_t*>(call.input) +
                    (call.input_offsets != nullptr ? call.input_offsets[rank] : behind) * element;
      scale(scaled_.data() + at, from, count, call.datatype, call.factor);
      at += count * element;
      behind += count;
    }
    call.inputs = nullptr;
    call.input_offsets = nullptr;
  } else {
    scaled_.resize(call.count * element);
    scale(scaled_.data(), call.input, call.count, call.datatype, call.factor);
  }
  call.input = scaled_.data();
}

// Under perform_mutex_.
Status Communicator::perform(const towline_collective_t& given, Deadline deadline,
                             std::string& text) noexcept {
  backend_text.clear();
  const uint64_t number = number_++;
  int32_t status = TOWLINE_OK;
  if (reduces(given.op) && given.reduction == TOWLINE_REDUCE_PREMUL_SUM && table_->issue == nullptr) {
    try {
      towline_collective_t call = given;
      scale_input(call);
      status = table_->perform(backend_, &call, number, deadline.ns());
    } catch (const std::exception&) {
      // The other ranks must not wait for it.
      constexpr const char* kWhy = "a rank has no memory to multiply what it gives";
      status = TOWLINE_OUT_OF_MEMORY;
      table_->abort(backend_, status, kWhy);
      backend_text.set(kWhy);
    }
  } else {
    status = table_->perform(backend_, &given, number, deadline.ns());
  }
  if (status < 0) return failure(status, text);
  return Status::kOk;
}

Status Communicator::run(const towline_collective_t& call, const towline_collective_options_t* options,
                         std::string& text) {
  if (const Status status = usable_fast(); is_error(status)) [[unlikely]]
    return usable(text);
  const uint64_t timeout_ns = timeout_of(options);
  const Interrupt interrupt(options);
  const bool hooked = hook_count_.load(std::memory_order_relaxed) != 0;
  if (cpu_ != nullptr && !hooked) {
    if (Status status{}; perform_small(call, timeout_ns, text, status)) return status;
  }
  check_call(call);
  const bool message = call.op == TOWLINE_COLLECTIVE_SEND || call.op == TOWLINE_COLLECTIVE_RECV;
  if (message && cpu_ != nullptr && !hooked) return run_message(call, timeout_ns, text);
  const Deadline deadline = deadline_in(timeout_ns);
  const Issued issued = with_hooks(&call, call.op, options, false, [&](uint64_t op_id) {
    Status status{};
    if (message) {
      std::vector<std::unique_ptr<OwnedCall>> calls;
      calls.push_back(std::make_unique<OwnedCall>(call, options_.size));
      status = run_messages(std::move(calls), call.op, timeout_ns, deadline, op_id, text);
    } else {
      status = perform_now(call, timeout_ns, deadline, op_id, text);
    }
    return Issued{static_cast<int32_t>(status)};
  });
  return Status{issued.status};
}

Status Communicator::perform_now(const towline_collective_t& call, uint64_t timeout_ns, Deadline deadline,
                                 uint64_t op_id, std::string& text) {
  const bool finishing = finishes_here();
  if (!finishing && queued_.load(std::memory_order_acquire) != 0) {
    // Others are before it.
    Work* work = enqueue(call, timeout_ns, deadline, op_id);
    const Status status = wait(*work, TOWLINE_FOREVER);
    text = work->error();
    work->release();
    return status;
  }
  const uint64_t record = recorder_.issue(&call, call.op, op_id, timeout_ns);
  Status status = Status::kOk;
  {
    std::unique_lock lock(perform_mutex_, std::defer_lock);
    if (!finishing) lock.lock();
    status = perform(call, deadline, text);
  }
  recorder_.end(record, status);
  if (is_error(status)) after_failure(status, text);
  return status;
}

Work* Communicator::start(const towline_collective_t& call, const towline_collective_options_t* options) {
  std::string text;
  if (const Status status = usable(text); is_error(status)) fail(status, "{}", text);
  check_call(call);
  const uint64_t timeout_ns = timeout_of(options);
  const Deadline deadline = Deadline::after(monotonic_now_ns(), timeout_ns);
  const auto issue = [&](uint64_t op_id) {
    if (call.op != TOWLINE_COLLECTIVE_SEND && call.op != TOWLINE_COLLECTIVE_RECV)
      return Issued{.work = enqueue(call, timeout_ns, deadline, op_id)};
    std::vector<std::unique_ptr<OwnedCall>> calls;
    calls.push_back(std::make_unique<OwnedCall>(call, options_.size));
    Work* const work = begin_messages(call.op, std::move(calls), timeout_ns, deadline, op_id);
    watch_messages(work);
    return Issued{.work = work};
  };
  return with_hooks(&call, call.op, options, true, issue).work;
}

Work* Communicator::enqueue(const towline_collective_t& call, uint64_t timeout_ns, Deadline deadline,
                            uint64_t op_id) {
  Work::Owned work(new Work(shared_from_this(), call.op, timeout_ns, deadline));
  work->batch.push_back(std::make_unique<OwnedCall>(call, options_.size));
  if (finishes_here()) {
    work->record = recorder_.issue(&call, call.op, op_id, timeout_ns);
    run_one(*work);
    return work.release();
  }
  {
    const std::lock_guard lock(queue_mutex_);
    if (!runner_.joinable()) runner_ = std::thread([this] { serve_queue(); });
    queue_.emplace_back(work.get());
    work->record = recorder_.issue(&call, call.op, op_id, timeout_ns);
    queued_.fetch_add(1, std::memory_order_release);
  }
  queue_changed_.notify_all();  // other threads than runner_ may wait for it
  return work.release();
}

bool Communicator::run_front() {
  WorkRef work;
  {
    const std::lock_guard lock(queue_mutex_);
    if (queue_.empty()) return false;
    work = std::move(queue_.front());
    queue_.pop_front();
  }
  run_one(*work);
  {
    const std::lock_guard lock(queue_mutex_);
    queued_.fetch_sub(1, std::memory_order_release);
  }
  queue_changed_.notify_all();
  return true;
}

// perform_mutex_ is held.
void Communicator::run_one(Work& work) {
  const std::thread::id outer = finisher_.exchange(std::this_thread::get_id(), std::memory_order_relaxed);
  work.begin();
  recorder_.start(work.record);
  std::string text;
  Status status = usable_fast();
  if (status == Status::kClosed && broken_ == 0) status = Status::kOk;  // it was issued before the close
  if (is_error(status))
    usable(text);
  else
    status = perform(work.batch.front()->get(), work.deadline(), text);
  recorder_.end(work.record, status);
  if (is_error(status)) after_failure(status, text);
  work.finish(status, std::move(text));
  finisher_.store(outer, std::memory_order_relaxed);
}

void Communicator::serve_queue() {
  for (;;) {
    {
      std::unique_lock lock(queue_mutex_);
      queue_changed_.wait(lock, [&] { return !queue_.empty() || stopping_; });
      if (queue_.empty()) return;
    }
    const std::lock_guard lock(perform_mutex_);
    run_front();
  }
}

// Runs the works before it and the work itself, unless another thread is doing so.
bool Communicator::drain_for(Work& work) {
  std::unique_lock lock(perform_mutex_, std::defer_lock);
  if (!finishes_here() && !lock.try_lock()) return false;
  while (!work.ended() && run_front()) {
  }
  return work.ended();
}

void Communicator::interrupt(const std::string& what) {
  const std::string text = fmt::format("rank {} was interrupted in {}", options_.rank, what);
  table_->abort(backend_, TOWLINE_CANCELLED, text.c_str());
}

Status Communicator::wait(Work& work, uint64_t timeout_ns) {
  const Deadline until = Deadline::after(monotonic_now_ns(), timeout_ns);
  work.call_all(TOWLINE_WORK_WAIT_PRE);
  if (work.streamed || work.op() == TOWLINE_COLLECTIVE_SEND || work.op() == TOWLINE_COLLECTIVE_RECV ||
      work.op() == TOWLINE_COLLECTIVE_BATCH) {
    wait_for_messages(work, until);
  } else {
    // With a time limit the operation stays with the communicator's thread, since it could outlast the limit
    // in this one. The exception: this is the communicator's thread, inside a function of an earlier work.
    if (!work.ended() && timeout_ns != 0 && (until >= work.deadline() || finishes_here())) drain_for(work);
    SpinWait spin(2000, 16);
    while (!work.ended() && spin.again()) {
    }
    while (!work.ended() && !until.passed(monotonic_now_ns())) {
      work.sleep(std::min(until, Deadline::after(monotonic_now_ns(), 100 * kMillisecondNs)));
      if (Interrupt::asked()) interrupt(op_name(work.op()));
      // This work waits behind another one that may take longer.
      if (!work.ended() && work.state() == TOWLINE_WORK_NOT_STARTED &&
          work.deadline().passed(monotonic_now_ns())) {
        const std::string text = fmt::format("rank {} timed out in {}, which waited for operations before it",
                                             options_.rank, op_name(work.op()));
        table_->abort(backend_, TOWLINE_TIMED_OUT, text.c_str());
      }
    }
  }
  work.call_all(TOWLINE_WORK_WAIT_POST);
  return work.outcome();
}

}  // namespace towline::collectives
