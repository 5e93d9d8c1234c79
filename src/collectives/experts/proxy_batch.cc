// The proxy's part in batches: rows go from this rank's stage to its mirror in the memory of a rank of another host. A post has the stage's
// header and the rows that the kernels have marked for that rank.
//
// Kernels write to a half of the stage again when all ranks have taken what lay there, and proxies pass that on when the post has its
// outcome. So a post that may still succeed reads what was put for it. A rank that is disconnected is waited for no longer: before
// it goes, so does every transfer that reads the stage.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "collectives/experts/batch_relay.h"
#include "collectives/experts/proxy.h"

namespace towline::collectives::experts {
namespace {

constexpr uint32_t kHalves = 2;
constexpr uint64_t kBeginningBytes = 16;  // of a header, which has more
// The number of a plan's first block of rows: the headers of both halves come first.
uint32_t rows_from(const BatchRows& rows) { return rows.header_bytes != 0 ? kHalves : 0; }
// The same of the beginnings of both headers.
uint32_t beginnings_from(const BatchRows& rows) { return kHalves + kHalves * rows.round_tokens; }

towline_blocks_t blocks_of(uint64_t address, uint64_t length, uint64_t count, uint64_t half_bytes,
                           uint32_t kind, uint64_t device) {
  towline_blocks_t made = {};
  made.address = address;
  made.length = length;
  made.kind = kind;
  made.device = device;
  made.dimensions = 2;
  made.count[0] = kHalves;
  made.count[1] = count;
  made.stride[0] = half_bytes;
  made.stride[1] = length;
  return made;
}

}  // namespace

// ---- The application's thread

void Proxy::register_stage(const BatchRows& rows) {
  if (stage_region_ != nullptr) return;
  TOWLINE_INIT(towline_region_options_t, region);
  region.kind = options_.kind();
  region.device = options_.device();
  require(functions_.region_register(agent_, reinterpret_cast<void*>(options_.segment + rows.stage_at),
                                     kHalves * rows.half_bytes, &region, &stage_region_),
          "register the stage", options_.rank);
}

towline_plan_t* Proxy::make_plan(const Remote& remote, const BatchRows& rows, uint64_t timeout_ns,
                                 int32_t& status) const {
  const uint64_t area = options_.layout.area_bytes;
  const uint64_t stage = options_.segment + rows.stage_at;
  const uint64_t mirror = remote.side.slots + kHalves * options_.rank * area;
  const uint64_t before = rows.by_rank ? remote.rank * rows.round_tokens * rows.row_bytes : 0;
  std::vector<towline_blocks_t> here;
  std::vector<towline_blocks_t> there;
  const auto add = [&](uint64_t from, uint64_t to, uint64_t length, uint64_t count) {
    here.push_back(
        blocks_of(stage + from, length, count, rows.half_bytes, options_.kind(), options_.device()));
    there.push_back(blocks_of(mirror + to, length, count, area, remote.side.kind, remote.side.device));
  };
  if (rows.header_bytes != 0) add(0, 0, rows.header_bytes, 1);
  add(rows.header_bytes + before, rows.header_bytes, rows.row_bytes, rows.round_tokens);
  if (rows.header_bytes != 0) add(0, 0, kBeginningBytes, 1);
  return plan_between(remote, here, there, timeout_ns, status);
}

// `remote` was taken out of `remotes_`. Cancels its posts and waits until they no longer read the stage; those that still may go to `reads_`.
void Proxy::await_end_of_reads(Remote& remote) {
  if (stage_region_ == nullptr) return;
  const uint64_t end = monotonic_now_ns() + std::min(options_.timeout_ns, kMostSettlingNs);
  for (Half& half : remote.halves) {
    if (half.post == nullptr) continue;
    (void)functions_.post_cancel(half.post);
    const uint64_t now = monotonic_now_ns();
    if (functions_.post_wait_fenced(half.post, TOWLINE_FENCE_LOCAL, end - std::min(now, end)) != TOWLINE_OK)
      reads_.push_back(std::exchange(half.post, nullptr));
  }
}

bool Proxy::stage_is_read() {
  std::erase_if(reads_, [&](towline_post_t* post) {
    if (functions_.post_wait_fenced(post, TOWLINE_FENCE_LOCAL, 0) != TOWLINE_OK) return false;
    functions_.post_release(post);
    return true;
  });
  return !reads_.empty();
}

// ---- The proxy's thread

// As pick().
towline_plan_t* Proxy::pick_batch(const Remote& remote, uint32_t half, ExchangeMessage& message) {
  const uint64_t marked = device::load_relaxed(&image(remote).marked[half][options_.rank]);
  const auto way = std::find_if(remote.batch_ways.begin(), remote.batch_ways.end(),
                                [&](const Way<BatchRows>& each) { return each.number == marked >> 32; });
  if (way == remote.batch_ways.end()) return nullptr;
  const BatchRows& rows = way->shape;
  const uint32_t in_stage = stage_half(message.shape);
  const uint32_t first = rows_from(rows) + in_stage * rows.round_tokens;
  const auto* const places = reinterpret_cast<const uint32_t*>(
      static_cast<const uint8_t*>(remote.memory->host()) + options_.layout.used_at(half, 0));
  picks_.clear();
  // A rank that reads elsewhere has no rows. What it gets is for the post's outcome alone.
  const bool elsewhere = reads_elsewhere(remote.rank, remote.halves[half].via);
  if (rows.header_bytes != 0) picks_.push_back((elsewhere ? beginnings_from(rows) : 0) + in_stage);
  for (uint32_t i = 0; i < std::min(static_cast<uint32_t>(marked), rows.round_tokens); ++i) {
    // Once: a kernel of a later session may write here.
    const uint32_t place = __atomic_load_n(&places[i], __ATOMIC_RELAXED);
    if (place < rows.round_tokens) picks_.push_back(first + place);
  }
  if (picks_.empty()) picks_.push_back(first);
  message.counts.assign(options_.layout.local, 0);
  message.counts[0] = flag_count(device::load_relaxed(&image(remote).returned[half][options_.rank]));
  return way->plan;
}

// ---- Relays

// The relay's exchange is published before those of the ranks that read there.
Proxy::Rows Proxy::rows_at_relay(uint64_t via) const {
  const Remote* const relay = remotes_[relay_in(via)].get();
  if (relay == nullptr) return Rows::kAreLost;
  const uint32_t in_half = flag_number(via) & 1;
  const uint64_t flag = via >> kCountBits << kCountBits;
  if (device::load_acquire(&image(*relay).ready[in_half][options_.rank]) != flag) return Rows::kAreLost;
  const Half& half = relay->halves[in_half];
  if (half.seen != flag || (half.post != nullptr && !half.ended)) return Rows::kAreOnTheirWay;
  return half.came ? Rows::kCame : Rows::kAreLost;
}

// The rank has opened another session while an exchange of this one waited for its relay. To post that now would cancel what the new
// session has under way.
bool Proxy::is_over(const Remote& remote, uint64_t flag) const {
  const auto& in = *static_cast<const Control*>(in_->host());
  return nonce_of(device::load_acquire(&in.opened[remote.rank])) != flag_nonce(flag);
}

// Without the relay they would be told that the rows are lost.
bool Proxy::told_readers_of(uint32_t relay) const {
  for (const std::unique_ptr<Remote>& remote : remotes_) {
    if (remote == nullptr || remote->rank == relay) continue;
    for (uint32_t half = 0; half < kHalves; ++half) {
      if (remote->halves[half].seen == device::load_acquire(&image(*remote).ready[half][options_.rank]))
        continue;
      const uint64_t via = device::load_relaxed(&image(*remote).via[half][options_.rank]);
      if (via != 0 && relay_in(via) == relay) return false;
    }
  }
  return true;
}

}  // namespace towline::collectives::experts
