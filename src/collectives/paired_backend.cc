#include "collectives/paired_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "base/config/config.h"
#include "base/error.h"
#include "base/per_thread.h"
#include "collectives/backend.h"
#include "collectives/calls/types.h"
#include "collectives/host_relay.h"
#include "collectives/host_store.h"
#include "rendezvous/exchange.h"

namespace towline::collectives {
namespace {

constexpr uint32_t kShapes[] = {TOWLINE_COLLECTIVE_ALL_REDUCE, TOWLINE_COLLECTIVE_ALL_GATHER,
                                TOWLINE_COLLECTIVE_REDUCE_SCATTER, TOWLINE_COLLECTIVE_ALL_TO_ALL};

// Where NCCL was faster between GPUs joined by NVLink (bench/results/2026-11-four-gpus.md).
struct Measured {
  int ranks;
  uint32_t op;
  uint64_t from;
};
constexpr Measured kMeasured[] = {{4, TOWLINE_COLLECTIVE_ALL_REDUCE, 512ull << 20}};

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

constexpr uint64_t kGlanceNs = 2 * kMillisecondNs;

// Why a backend failed in this thread's current call.
thread_local constinit ThreadText side_text;

}  // namespace

NcclShapes::NcclShapes(const std::string& text, int ranks) {
  from_.fill(UINT64_MAX);
  if (text == "measured") {
    for (const Measured& one : kMeasured)
      if (one.ranks == ranks) from_[one.op] = one.from;
    return;
  }
  if (text == "none") return;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry = trimmed(text.substr(begin, end - begin));
    begin = end + 1;
    const size_t equals = entry.find('=');
    const std::string name = trimmed(entry.substr(0, equals));
    const auto* const op = std::find_if(std::begin(kShapes), std::end(kShapes),
                                        [&](uint32_t one) { return name == op_name(one); });
    const auto bytes = equals == entry.npos ? std::nullopt : parse_bytes(trimmed(entry.substr(equals + 1)));
    if (op == std::end(kShapes) || !bytes)
      fail(Status::kInvalidArgument,
           "{} = \"{}\": expected none, measured, or entries such as all_reduce=512MiB for all_reduce, "
           "all_gather, reduce_scatter or all_to_all",
           kNcclFrom, text);
    from_[*op] = *bytes;
  }
}

bool NcclShapes::has(const towline_collective_t& call, int ranks) const noexcept {
  if (call.op >= from_.size() || from_[call.op] == UINT64_MAX) return false;
  if (reduces(call.op)) {
    const bool floating = call.datatype <= TOWLINE_BFLOAT16;  // every NCCL has these
    const bool plain = call.reduction == TOWLINE_REDUCE_SUM || call.reduction == TOWLINE_REDUCE_AVG ||
                       call.reduction == TOWLINE_REDUCE_MIN || call.reduction == TOWLINE_REDUCE_MAX;
    if (!floating || !plain) return false;
  }
  const uint64_t parts = call.op == TOWLINE_COLLECTIVE_ALL_REDUCE ? 1 : static_cast<uint64_t>(ranks);
  return call.count * datatype_bytes(call.datatype) * parts >= from_[call.op];
}

bool NcclShapes::empty() const noexcept {
  return std::all_of(from_.begin(), from_.end(), [](uint64_t from) { return from == UINT64_MAX; });
}

std::string NcclShapes::text() const {
  std::string made;
  for (const uint32_t op : kShapes)
    if (from_[op] != UINT64_MAX)
      made += fmt::format("{}{}={}", made.empty() ? "" : ", ", op_name(op), from_[op]);
  return made.empty() ? "none" : made;
}

PairedBackend::PairedBackend(const towline_collective_open_args& args,
                             const towline_collective_table_v1_t& own)
    : host_(args.host),
      own_table_(own),
      rank_(args.rank),
      size_(args.size),
      shapes_(host_->config(host_->context, kNcclFrom, "none"), args.size) {
  agree(args);
  own_host_ = make_host();
  towline_collective_open_args mine = args;
  mine.host = &own_host_;
  towline_collective_backend* made = nullptr;
  if (const int32_t status = own_table_.open(&mine, &made); status < 0)
    fail(Status{status}, "{}", side_text.empty() ? status_text(Status{status}) : side_text.c_str());
  {
    const std::lock_guard lock(open_mutex_);
    own_ = made;
  }
  if (shapes_.empty()) {
    why_not_ = fmt::format("it was not measured to be faster with {} ranks", size_);
    return;
  }
  try {
    open_nccl(args);
  } catch (...) {
    if (nccl_table_ != nullptr) close_one(*nccl_table_, nccl_);
    close_one(own_table_, own_);
    throw;
  }
}

// Passes everything on to the communicator. A failure of either backend ends the operations of both.
towline_collective_host_v1_t PairedBackend::make_host() {
  towline_collective_host_v1_t made = relay_host(*this);
  made.fail = [](void* context, const char* text) {
    const auto& host = *static_cast<PairedBackend*>(context)->host_;
    side_text.set(text);
    host.fail(host.context, text);
  };
  made.broken = [](void* context, int32_t status, const char* text) {
    auto& self = *static_cast<PairedBackend*>(context);
    if (!self.stop_both(status, text, true)) return;  // the communicator knows
    self.host_->broken(self.host_->context, status, self.reason_.c_str());
  };
  return made;
}

// The ranks' tables are the same, or every rank learns which one differs.
void PairedBackend::agree(const towline_collective_open_args& args) {
  HostStore store(*host_);
  const std::string mine = shapes_.text();
  const auto all = rendezvous::exchange(store, "shapes", rank_, size_,
                                        {reinterpret_cast<const uint8_t*>(mine.data()), mine.size()},
                                        Deadline::at(args.deadline_ns));
  const std::string first(all.front().begin(), all.front().end());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const std::string theirs(all[rank].begin(), all[rank].end());
    if (theirs != first)
      fail(Status::kMismatch, "ranks disagree in {}: rank 0 has {}, rank {} has {}", kNcclFrom, first, rank,
           theirs);
  }
}

void PairedBackend::open_nccl(const towline_collective_open_args& args) {
  nccl_host_ = make_host();
  prefix_keys<PairedBackend>(nccl_host_);
  towline_collective_open_args mine = args;
  mine.host = &nccl_host_;
  // A rank that has no NCCL does not come to meet the others in it: they must have time left to tell one another.
  const uint64_t now = monotonic_now_ns();
  if (args.deadline_ns > now) mine.deadline_ns = now + (args.deadline_ns - now) / 2;
  side_text.clear();
  towline_collective_backend* made = nullptr;
  std::string reason;
  try {
    nccl_table_ = &find_backend("nccl");
    if (nccl_table_->open(&mine, &made) < 0)
      reason = side_text.empty() ? "NCCL did not open" : side_text.c_str();
  } catch (const Error& error) {
    reason = error.message();
  }
  {
    const std::lock_guard lock(open_mutex_);
    nccl_ = made;
  }
  // On every rank, or on none.
  HostStore store(*host_);
  const auto reasons = rendezvous::exchange(store, "beside", rank_, size_,
                                            {reinterpret_cast<const uint8_t*>(reason.data()), reason.size()},
                                            Deadline::at(args.deadline_ns));
  for (size_t rank = 0; rank < reasons.size() && why_not_.empty(); ++rank)
    if (!reasons[rank].empty())
      why_not_ = fmt::format("rank {}: {}", rank, std::string(reasons[rank].begin(), reasons[rank].end()));
  if (!why_not_.empty() && nccl_table_ != nullptr) close_one(*nccl_table_, nccl_);
}

void PairedBackend::close_one(const towline_collective_table_v1_t& table, towline_collective_backend*& side) {
  towline_collective_backend* closing = nullptr;
  {
    std::unique_lock lock(open_mutex_);
    stopped_changed_.wait(lock, [this] { return !busy_stopping_; });
    closing = std::exchange(side, nullptr);
  }
  if (closing != nullptr) table.close(closing);
}

PairedBackend::~PairedBackend() {
  if (nccl_table_ != nullptr) close_one(*nccl_table_, nccl_);
  close_one(own_table_, own_);
}

PairedBackend::Side PairedBackend::side_of(const towline_collective_t& call) noexcept {
  if (nccl_ == nullptr || !shapes_.has(call, size_)) return own();
  given_to_nccl_.fetch_add(1, std::memory_order_relaxed);
  return {*nccl_table_, nccl_};
}

int32_t PairedBackend::look() const noexcept {
  const int32_t status = own_table_.look(own_);
  return status < 0 || nccl_ == nullptr || nccl_table_->look == nullptr ? status : nccl_table_->look(nccl_);
}

int32_t PairedBackend::ended(int32_t status) {
  if (status >= 0) return status;
  stop_both(status, side_text.c_str(), true);
  std::unique_lock lock(open_mutex_);
  stopped_changed_.wait(lock, [this] { return has_reason_; });
  host_->fail(host_->context, reason_.c_str());
  return stopped_;
}

// A rank that stops its backends because of one makes the other one tell the ranks only that it was this rank. So each
// rank first writes why.
std::string PairedBackend::reason_of_others() {
  HostStore store(*host_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    try {
      const auto text =
          store.get(fmt::format("why/{}", rank), Deadline::after(monotonic_now_ns(), kGlanceNs));
      if (!text.empty()) return {text.begin(), text.end()};
    } catch (const Error&) {  // it wrote nothing, or there is no store any more
    }
  }
  return {};
}

bool PairedBackend::stop_both(int32_t status, const char* text, bool ask) {
  {
    const std::lock_guard lock(open_mutex_);
    if (std::exchange(stopping_, true)) return false;
    busy_stopping_ = true;
  }
  std::string reason = ask ? reason_of_others() : "";
  if (reason.empty()) reason = text;
  (void)host_->store_set(host_->context, fmt::format("why/{}", rank_).c_str(), reason.data(), reason.size());
  towline_collective_backend* own = nullptr;
  towline_collective_backend* nccl = nullptr;
  {
    const std::lock_guard lock(open_mutex_);
    reason_ = reason;
    stopped_ = status;
    has_reason_ = true;
    own = own_;
    nccl = nccl_;
  }
  stopped_changed_.notify_all();
  // Without the lock: either may call broken, on threads that it waits for.
  if (nccl != nullptr) nccl_table_->abort(nccl, status, reason.c_str());
  if (own != nullptr) own_table_.abort(own, status, reason.c_str());
  const std::lock_guard lock(open_mutex_);
  busy_stopping_ = false;
  stopped_changed_.notify_all();
  return true;
}

std::string PairedBackend::describe() const {
  std::string text(65536, 0);
  const auto of = [&](const Side& side) {
    size_t needed = 0;
    const int32_t status = side.table.describe(side.backend, text.data(), text.size(), &needed);
    return status >= 0 && needed <= text.size() ? nlohmann::json::parse(text.c_str(), nullptr, false)
                                                : nlohmann::json();
  };
  nlohmann::json info = of(own());
  info["nccl_from"] = shapes_.text();
  if (nccl_ != nullptr) {
    info["nccl"] = of({*nccl_table_, nccl_});
    info["nccl_operations"] = given_to_nccl_.load(std::memory_order_relaxed);
  } else {
    info["no_nccl"] = why_not_;
  }
  return info.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::collectives
