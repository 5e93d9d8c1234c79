#include "replay/mover.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "failure.h"
#include "replay/summary.h"
#include "units.h"

namespace tool::replay {

using towline::Status;

namespace {

// Blocks picked for one transfer; the library takes ten million.
constexpr uint64_t kMostPicks = 4'000'000;
constexpr int kMostAttempts = 10;

// True if posting again may help: the connection was lost, not the memory or the peer.
bool worth_repeating(Status status) {
  return status == Status::kPeerLost || status == Status::kTimedOut || status == Status::kIo ||
         status == Status::kShort || status == Status::kCorrupt || status == Status::kUnreachable;
}

}  // namespace

std::string describe_failure(uint32_t request, uint64_t blocks, int attempts, Status outcome,
                             const std::string& route) {
  return fmt::format("request {}: a transfer of {} blocks by {} failed at attempt {}: {}", request, blocks,
                     describe_route(route), attempts, status_text(outcome));
}

void Mover::start(const PoolPair& pools, uint32_t request, uint32_t consumer, MessageType message,
                  const std::vector<uint32_t>& local_pages, const std::vector<uint32_t>& remote_pages) {
  const uint32_t layer_planes = pools.local.shape.layer_planes();
  const uint64_t picks_each = local_pages.size() * std::max(pools.local.blocks_per_page(pools.heads),
                                                            pools.remote.blocks_per_page(pools.heads));
  const auto step = static_cast<uint32_t>(std::clamp<uint64_t>(kMostPicks / picks_each, 1, layer_planes));
  const uint32_t parts = (layer_planes + step - 1) / step;
  const uint64_t group = next_id_++;
  groups_[group] = {{request, consumer}, parts};
  std::vector<uint32_t> local;
  std::vector<uint32_t> remote;
  for (uint32_t part = 0; part < parts; ++part) {
    local.clear();
    remote.clear();
    const uint32_t first = part * step;
    const uint32_t last = std::min(layer_planes, first + step);
    pools.local.append_picks(pools.heads, first, last, local_pages, local);
    pools.remote.append_picks(pools.heads, first, last, remote_pages, remote);
    const uint64_t id = next_id_++;
    const std::string notice = encode_part(message, {request, part, parts});
    const towline::PickedBlocks here = pools.local_list[local];
    const towline::PickedBlocks there = pools.remote_list[remote];
    Part made{.transfer = agent_.transfer(options_.pulls ? there : here, options_.pulls ? here : there,
                                          {.notice = notice,
                                           .timeout = options_.timeout,
                                           .backend = options_.backend,
                                           .workers = options_.workers,
                                           .queue_completion = true,
                                           .user_data = reinterpret_cast<void*>(id)}),
              .group = group,
              .bytes = uint64_t{last - first} * local_pages.size() * pools.local.shape.page_tokens *
                       pools.heads.count * pools.local.shape.head_bytes,
              .blocks = std::max(local.size(), remote.size())};
    if (route_.empty()) route_ = made.transfer.route();
    parts_.emplace(id, std::move(made));
    unposted_.push_back(id);
  }
}

void Mover::post(uint64_t id, std::vector<Ended>& ended) {
  Part& part = parts_.at(id);
  part.posted_at = Clock::now();
  const Status status = part.transfer.post();
  if (status == Status::kAgain || status == Status::kBusy) {
    unposted_.push_front(id);
    return;
  }
  part.in_flight = true;
  if (in_flight_++ == 0) active_since_ = part.posted_at;
  if (status != Status::kInProgress) end(id, status, ended);
}

void Mover::end(uint64_t id, Status outcome, std::vector<Ended>& ended) {
  const auto found = parts_.find(id);
  if (found == parts_.end() || !found->second.in_flight) return;  // post() has already reported its end
  Part& part = found->second;
  part.in_flight = false;
  const double latency_s = seconds_since(part.posted_at);
  if (--in_flight_ == 0) active_s_ += seconds_since(active_since_);
  if (is_error(outcome)) {
    ++part.attempts;
    if (!worth_repeating(outcome) || part.attempts >= kMostAttempts) {
      throw Failure{describe_failure(groups_.at(part.group).what.request, part.blocks, part.attempts, outcome,
                                     part.transfer.route())};
    }
    ++retries_;
    unposted_.push_back(id);
    return;
  }
  latencies_.add(latency_s);
  bytes_ += part.bytes;
  blocks_ += part.blocks;
  ++transfers_;
  const uint64_t group = part.group;
  parts_.erase(found);
  if (--groups_.at(group).parts_left > 0) return;
  ended.push_back(groups_.at(group).what);
  groups_.erase(group);
}

// A failed transfer must be fenced before it is posted again, if its backend has fences.
bool Mover::fenced(const Part& part) const {
  const auto fence = options_.pulls ? towline::Fence::kLocal : towline::Fence::kBoth;
  return part.transfer.wait_fenced(fence, std::chrono::milliseconds{5}) != Status::kNotYet;
}

std::vector<Mover::Ended> Mover::advance() {
  std::vector<Ended> ended;
  for (size_t count = unposted_.size(); count > 0; --count) {
    const uint64_t id = unposted_.front();
    unposted_.pop_front();
    if (parts_.at(id).attempts > 0 && !fenced(parts_.at(id))) {
      unposted_.push_back(id);
      continue;
    }
    post(id, ended);
    if (!unposted_.empty() && unposted_.front() == id) break;  // no credit
  }
  std::array<towline::Completion, 16> completions;
  for (int32_t count = 0; (count = agent_.pull(completions)) > 0;) {
    for (int32_t at = 0; at < count; ++at) {
      end(reinterpret_cast<uint64_t>(completions[at].user_data), completions[at].outcome(), ended);
    }
  }
  return ended;
}

}  // namespace tool::replay
