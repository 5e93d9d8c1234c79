#include "collectives/gpu/gpu_backend.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/sync/spin.h"
#include "collectives/calls/types.h"
#include "collectives/gpu/clusters.h"
#include "collectives/gpu/marks.h"
#include "collectives/gpu/operations.h"
#include "gpu/reserve_wish.h"

namespace towline::collectives::gpu {
namespace {

constexpr uint64_t kWatchNs = 10 * kMillisecondNs;
// How long kernels in progress may take to notice that a communicator closes or broke.
constexpr uint64_t kEndWithinNs = 10 * kSecondNs;

}  // namespace

// ---- Life

GpuBackend::GpuBackend(const towline_collective_open_args& args, cuda::KernelDevice& device,
                       const cuda::KernelSet& kernels)
    : StreamBackend(args, device), replays_(device_, gpu_, *host_) {
  if (size_ > kMaxRanks)
    fail(Status::kUnsupported, "{} ranks: a communicator on GPUs has at most {}", size_, kMaxRanks);
  kernels_ = device_.load(gpu_, kernels);
  words_ = device_.make_words(gpu_, 4096);
  static_assert(sizeof(Report) <= 2048 && sizeof(Orders) <= 2048);
  report_ = static_cast<Report*>(words_->host());
  orders_ = reinterpret_cast<Orders*>(static_cast<uint8_t*>(words_->host()) + 2048);

  reserve();
  order_replays_ = number_setting("tuning.collectives.gpu_order_replays", 0, 1) != 0;
  const uint64_t bytes = segment_bytes(size_);
  std::shared_ptr<cuda::SharedPiece> piece = device_.allocate(gpu_, bytes);
  memory_ = std::make_unique<cuda::SymmetricMemory>(device_, gpu_, std::move(piece), bytes, words_, rank_,
                                                    size_, board(), Deadline::at(args.deadline_ns));
  settle_ways(args);

  for (uint32_t rank = 0; rank < size_; ++rank) base_.segment[rank] = memory_->address(rank);
  for (uint32_t rank = 0; rank < size_; ++rank)
    base_.report[rank] = memory_->words(rank) != nullptr ? memory_->words(rank)->gpu() : 0;
  base_.orders = words_->gpu() + 2048;
  base_.together = memory_->together() ? 1 : 0;
  base_.rank = rank_;
  base_.size = size_;
  collectives_.running.last = device_.make_moment(gpu_);
  control_.running.last = device_.make_moment(gpu_);
  // Now, and those of messages and of collectives in graphs, too: the driver may have to wait for kernels before it makes another,
  // and they may wait for this rank.
  ahead_ = device_.make_streams_ahead(gpu_, wish_.any() ? 0 : 3 + 2 * (size_ - 1));
  control_.own = device_.make_stream(gpu_, wish_);
  collectives_.own = device_.make_stream(gpu_, wish_);
  breaker_.set_listener([this](const Breakage& breakage) {
    host_->broken(host_->context, static_cast<int32_t>(breakage.status), breakage.text.c_str());
  });
  watcher_ = std::thread([this] { watch(); });
}

// Multiprocessors for this rank's operations, where the application asks for some.
void GpuBackend::reserve() {
  const cuda::ReserveWish wish = cuda::read_reserve_wish(
      {"tuning.collectives.gpu_reserved_sms", "tuning.collectives.gpu_application_sms",
       "tuning.collectives.gpu_green_context"},
      [this](const char* key) { return host_->config(host_->context, key, ""); });
  if (!wish.any()) return;
  const cuda::Reserve reserved = device_.reserve(gpu_, wish);
  reserved_sms_ = reserved.sms;
  none_reserved_ = reserved.why_not;
  if (reserved_sms_ != 0) wish_ = wish;
}

void GpuBackend::compare(const char* name, std::span<const uint8_t> mine, Deadline deadline,
                         const std::function<void(uint32_t, std::span<const uint8_t>)>& heard) const {
  const cuda::Noticeboard all = board();
  all.set(fmt::format("gpu/{}/{}", name, rank_), mine);
  for (uint32_t rank = 0; rank < size_; ++rank)
    if (rank != rank_) heard(rank, all.get(fmt::format("gpu/{}/{}", name, rank), deadline));
}

// GPUs may differ, and ranks may be spread unevenly over them.
GpuBackend::GpuShare GpuBackend::least_share(Deadline deadline) const {
  const cuda::Gpu& mine = device_.gpus()[gpu_];
  const uint32_t usable = reserved_sms_ != 0 ? reserved_sms_ : usable_multiprocessors(mine.multiprocessors);
  const bool alone = memory_->ranks_on_gpu() == 1;
  GpuShare least{std::max(1u, usable / memory_->ranks_on_gpu()),
                 alone ? 1u : 0u,
                 alone && mine.whole_lines ? 1u : 0u,
                 {}};
  // Another communicator has as many blocks as there are usable multiprocessors, and each takes half of one. A rank that is alone has half as
  // many, which take a whole one each. Clusters that multiprocessors of their own would hold are not known.
  const uint32_t places = alone ? mine.multiprocessors / 2 : 2 * mine.multiprocessors - usable;
  for (uint32_t parts = 2; parts <= kMostParts && reserved_sms_ == 0; ++parts)
    if (kernels_->clusters(marked_row_kernel(std::min(size_, kMarkedRanks), 0), parts))
      for (uint32_t i = 0; i < least.clusters.size(); ++i)
        least.clusters[i][parts - 2] = clusters_beside(places, 1 << i, parts) / memory_->ranks_on_gpu();
  std::array<uint8_t, sizeof least> said;
  std::memcpy(said.data(), &least, said.size());
  compare("share", said, deadline, [&](uint32_t rank, std::span<const uint8_t> heard) {
    GpuShare share{};
    if (heard.size() == sizeof share) std::memcpy(&share, heard.data(), sizeof share);
    if (share.multiprocessors == 0)
      fail(Status::kMismatch, "gpu: rank {} runs another build of Towline", rank);
    least.multiprocessors = std::min(least.multiprocessors, share.multiprocessors);
    least.alone = std::min(least.alone, share.alone);
    least.whole_lines = std::min(least.whole_lines, share.whole_lines);
    for (uint32_t i = 0; i < least.clusters.size(); ++i)
      for (uint32_t k = 0; k < kMostParts - 1; ++k)
        least.clusters[i][k] = std::min(least.clusters[i][k], share.clusters[i][k]);
  });
  return least;
}

GpuBackend::~GpuBackend() {
  // Replays are in streams that nobody here knows, and what they use goes now.
  if (in_graphs_) device_.settle(gpu_);
  {
    const std::lock_guard lock(watch_mutex_);
    stopping_ = true;
  }
  watch_changed_.notify_all();
  watcher_.join();
  replays_.tell();
  std::vector<Channel*> channels = {&collectives_};
  for (const auto& channel : channels_)
    if (channel != nullptr) channels.push_back(channel.get());
  for (Strand& strand : strands_) channels.push_back(&strand.channel);
  const auto drain = [&] {
    const uint64_t until = monotonic_now_ns() + kEndWithinNs;
    for (Channel* const channel : channels) {
      while (!drained(*channel) && monotonic_now_ns() < until) {
        look();
        if (breaker_.broken() && channels.back() != &control_) return;
        ::sched_yield();
      }
    }
  };
  // What was issued may not have begun, and others count on it: they must not be told before it has ended.
  drain();
  look();  // at what the last kernel reported
  tell(Failure::kLeft);
  channels.push_back(&control_);
  drain();
}

void GpuBackend::watch() {
  std::unique_lock lock(watch_mutex_);
  while (!stopping_) {
    watch_changed_.wait_for(lock, std::chrono::nanoseconds(kWatchNs));
    lock.unlock();
    look();
    replays_.tell();
    if (!breaker_.broken()) {
      if (const std::optional<uint32_t> lost = memory_->lost()) {
        order_stop(Failure::kLost, *lost);
        breaker_.raise_or_break(Status::kPeerLost,
                                [&] { return fmt::format("rank {}'s process is gone", called_[*lost]); });
      }
    }
    lock.lock();
  }
}

// ---- Failing

void GpuBackend::order_stop(Failure failure, uint32_t peer) noexcept {
  device::store_relaxed(&orders_->peer, peer);
  device::store_relaxed(&orders_->rank, rank_);
  device::store_release(&orders_->stop, static_cast<uint64_t>(failure));
}

// A kernel of its own: ranks that are at no operation learn of it at their next.
void GpuBackend::tell(Failure failure) noexcept {
  Launch said{base_, kMovingKernel, 1};
  said.job.way = Way::kTell;
  said.job.peer = static_cast<uint32_t>(failure);
  const std::lock_guard lock(control_.mutex);
  if (enqueue(said, control_.own->native()) == 0) (void)control_.running.last->record(control_.own->native());
}

void GpuBackend::abort(Status status, const std::string& text) {
  if (breaker_.broken()) return;
  order_stop(status == Status::kTimedOut ? Failure::kTimedOut : Failure::kAborted, rank_);
  tell(status == Status::kTimedOut ? Failure::kTimedOut : Failure::kAborted);
  breaker_.raise(status, text);
}

Breakage GpuBackend::breakage_of(const Report& report) const {
  const std::string mine = text_of(report.mine);
  const int32_t rank = called_[report.rank];
  const int32_t peer = called_[report.peer];
  switch (static_cast<Failure>(report.failure)) {
    case Failure::kTimedOut: {
      if (rank == peer) return {Status::kTimedOut, fmt::format("rank {} timed out", rank)};
      const uint64_t graph = is_collective(report.mine) ? recorded_.graph_of(report.mine.number) : 0;
      return {Status::kTimedOut,
              fmt::format("rank {} timed out in {}{}: rank {} did not come", rank, mine,
                          graph != 0 ? fmt::format(", which graph {} recorded", graph) : "", peer)};
    }
    case Failure::kMismatch:
      // The text does not depend on the rank that noticed.
      if (rank < peer)
        return {Status::kMismatch, fmt::format("ranks disagree: rank {} is at {}, rank {} at {}", rank, mine,
                                               peer, text_of(report.theirs))};
      return {Status::kMismatch, fmt::format("ranks disagree: rank {} is at {}, rank {} at {}", peer,
                                             text_of(report.theirs), rank, mine)};
    case Failure::kBytes:
      return {Status::kMismatch,
              fmt::format("ranks disagree in {}: rank {} sends {} bytes to rank {}, which expects {}", mine,
                          peer, report.sent, rank, report.expected)};
    case Failure::kAborted:
      return {Status::kCancelled, fmt::format("rank {} aborted the communicator", peer)};
    case Failure::kLeft:
      return {Status::kPeerLost, fmt::format("rank {} is at {}, but rank {} has left", rank, mine, peer)};
    case Failure::kLost:
      return {Status::kPeerLost, fmt::format("rank {}'s process is gone", peer)};
    default:
      return {Status::kInternal, "a kernel failed without a reason"};
  }
}

void GpuBackend::look() noexcept {
  if (breaker_.broken() || device::load_acquire(&report_->state) == 0) return;
  const Breakage breakage = breakage_of(*report_);
  breaker_.raise(breakage.status, breakage.text);
}

// ---- Building

void GpuBackend::build(const towline_collective_t& call, uint64_t number, uint64_t timeout_ns,
                       Launch& launch) {
  take_apart(call, static_cast<int>(rank_), static_cast<int>(size_), number, Deadline::never(), parts_);
  check_memory(call, parts_);
  Job& job = launch.job;
  job = base_;
  job.timeout_ns = timeout_ns;
  job.factor = call.factor;
  const Header& header = parts_.header;
  // For people, as the ranks are called: within a host of several the root is an index.
  const int32_t named_root = has_root(call.op) ? called_[static_cast<size_t>(call.root)] : header.root;
  job.mark = {number,    header.count,    header.digest,    0,
              header.op, header.datatype, header.reduction, named_root};
  job.digest = digest_of(job.mark);
  job.reduces = reduces(call.op) ? 1 : 0;
  launch.kernel = job.reduces != 0 ? call.datatype : kMovingKernel;

  const auto input = reinterpret_cast<uint64_t>(parts_.input);
  const auto output = reinterpret_cast<uint64_t>(parts_.output);
  const uint64_t bytes = parts_.bytes;
  const auto root = static_cast<uint32_t>(call.root);
  const bool is_root = rank_ == root;
  const auto give_all = [&](uint64_t to_each) {
    for (uint32_t peer = 0; peer < size_; ++peer) {
      job.in[peer] = input;
      job.in_bytes[peer] = to_each;
    }
  };
  const auto give_parts = [&] {
    for (uint32_t peer = 0; peer < size_; ++peer) {
      job.in[peer] = reinterpret_cast<uint64_t>(parts_.in.at[peer]);
      job.in_bytes[peer] = parts_.in.bytes[peer];
    }
  };
  const auto take_parts = [&] {
    for (uint32_t peer = 0; peer < size_; ++peer) {
      job.out[peer] = reinterpret_cast<uint64_t>(parts_.out.at[peer]);
      job.out_bytes[peer] = parts_.out.bytes[peer];
    }
  };
  const auto take_from = [&](uint32_t peer) {
    job.out[peer] = output;
    job.out_bytes[peer] = bytes;
    job.receives = 1;
  };
  switch (call.op) {
    case TOWLINE_COLLECTIVE_ALL_REDUCE:
      job.bytes = bytes;
      job.in[0] = input;
      job.out[0] = output;
      break;
    case TOWLINE_COLLECTIVE_REDUCE:
      job.shared = 1;
      job.peer = root;
      job.in[root] = input;
      job.in_bytes[root] = bytes;
      if (is_root) take_from(rank_);
      break;
    case TOWLINE_COLLECTIVE_BROADCAST:
      job.shared = 1;
      job.peer = root;
      if (is_root) give_all(bytes);
      if (!is_root || output != input) take_from(root);
      break;
    case TOWLINE_COLLECTIVE_ALL_GATHER:
    case TOWLINE_COLLECTIVE_ALL_GATHER_V:
      job.shared = 1;
      job.peer = rank_;
      job.bytes = call.op == TOWLINE_COLLECTIVE_ALL_GATHER ? bytes : UINT64_MAX;
      give_all(bytes);
      take_parts();
      break;
    case TOWLINE_COLLECTIVE_GATHER:
      job.shared = 1;
      job.peer = root;
      job.in[root] = input;
      job.in_bytes[root] = bytes;
      if (is_root) take_parts();
      break;
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER:
    case TOWLINE_COLLECTIVE_REDUCE_SCATTER_V:
      if (call.op == TOWLINE_COLLECTIVE_REDUCE_SCATTER) job.bytes = bytes;
      give_parts();
      take_from(rank_);
      break;
    case TOWLINE_COLLECTIVE_SCATTER:
      if (is_root) give_parts();
      take_from(root);
      break;
    case TOWLINE_COLLECTIVE_ALL_TO_ALL:
    case TOWLINE_COLLECTIVE_ALL_TO_ALL_V:
      job.compare = call.op == TOWLINE_COLLECTIVE_ALL_TO_ALL_V ? 1 : 0;
      if (job.compare == 0) job.bytes = bytes;
      give_parts();
      take_parts();
      break;
    default:
      break;
  }
  choose(launch);
}

std::string GpuBackend::describe() const {
  const auto marked = [](const MarkedLimits& limits) {
    return nlohmann::ordered_json{{"all_reduce", limits.bytes},
                                  {"sums", limits.sums},
                                  {"parts", limits.parts},
                                  {"two_shot", limits.two},
                                  {"sums_two_shot", limits.sums_two}};
  };
  nlohmann::ordered_json said = {{"gpu", gpu_},
                                 {"ranks_on_gpu", memory_->ranks_on_gpu()},
                                 {"reserved_sms", reserved_sms_},
                                 {"none_reserved", none_reserved_},
                                 {"direct", direct_},
                                 {"push", push_},
                                 {"max_blocks", max_blocks_},
                                 {"order_replays", order_replays_},
                                 {"marked_bytes", marked(in_slots_)}};
  if (lines_) said["marked_bytes_in_lines"] = marked(in_lines_);
  said["two_shot_bytes"] = two_shot_bytes_;
  said["segment_bytes"] = segment_bytes(size_);
  return said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace towline::collectives::gpu
