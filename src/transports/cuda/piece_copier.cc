#include "transports/cuda/piece_copier.h"

#include <algorithm>

#include "base/sync/spin.h"
#include "transports/cuda/work_list.h"

namespace towline::cuda {

PieceCopier::PieceCopier(CopyTeam& team, bool past_caches)
    : team_(&team), lists_(kDetourSlots), host_pieces_(std::size_t{kDetourSlots} * kMostListPieces) {
  for (uint32_t slot = 0; slot < kDetourSlots; ++slot) {
    lists_[slot].pieces = host_pieces_.data() + std::size_t{slot} * kMostListPieces;
    lists_[slot].job.past_caches = past_caches;
  }
}

PieceCopier::PieceCopier(Device& device, uint32_t gpu, bool after_default, uint32_t blocks,
                         const ReserveWish& wish)
    : queue_(device.make_queue(gpu, after_default, wish)), blocks_(blocks), lists_(kDetourSlots) {
  for (List& list : lists_) {
    list.room = queue_->make_list(kMostListPieces * sizeof(Piece));
    list.pieces = static_cast<Piece*>(list.room.host);
  }
}

std::unique_ptr<PieceCopier> PieceCopier::make_gathering(Device& device, uint32_t gpu, uint32_t blocks,
                                                         const ReserveWish& wish) {
  auto copier = std::make_unique<PieceCopier>(device, gpu, false, blocks, wish);
  copier->queue_->make_staging();
  copier->gathering_ = true;
  return copier;
}

PieceCopier::~PieceCopier() {
  drain();
  if (queue_ == nullptr) return;
  for (const List& list : lists_) queue_->release_list(list.room);
}

void PieceCopier::clear(uint32_t slot) noexcept {
  List& list = lists_[slot];
  list.count = 0;
  list.bytes = list.bits = 0;
}

void PieceCopier::add(uint32_t slot, uint64_t to, uint64_t from, uint64_t bytes) noexcept {
  List& list = lists_[slot];
  if (gathering_) {
    if (list.count == 0) list.to = to;
    to = list.bytes;
  }
  list.bits |= to | from | bytes | list.bytes;
  while (bytes != 0) {
    const uint64_t length = queue_ == nullptr ? bytes : std::min(bytes, kLongestPiece);
    list.pieces[list.count++] = {to, from, list.bytes, length};
    to += length;
    from += length;
    bytes -= length;
    list.bytes += length;
  }
}

Code PieceCopier::start(uint32_t slot) noexcept {
  List& list = lists_[slot];
  if (queue_ == nullptr) {
    list.job.pieces = list.pieces;
    list.job.count = list.count;
    list.job.bytes = list.bytes;
    list.under_way = true;
    team_->begin(list.job);
    return 0;
  }
  // The kernel reads the list where it was written, in pinned memory. Sent ahead by the copy engine it cost 6 us of
  // the worker's time, and where two processes share a GPU 0.3 ms for each chunk: the engine changes hands each time.
  CopyJob job{};
  job.form = Form::kPieces;
  job.end = list.bytes;
  job.pieces = list.count;
  job.list = reinterpret_cast<uint64_t>(list.room.host);
  job.chunks_per_piece = 1;
  job.threads = 32;
  job.aligned = (list.bits & 15) == 0 ? 1 : 0;
  list.value = ++last_value_;
  list.asked_ns = 0;
  if (gathering_) {
    const CopyQueue::Range range{list.to, 0, list.bytes};
    const Code code = queue_->relay(job, useful_blocks(job, blocks_), {&range, 1});
    return code != 0 ? code : queue_->mark(slot, list.value);
  }
  return queue_->launch(job, useful_blocks(job, blocks_), slot, list.value);
}

Code PieceCopier::look(uint32_t slot, uint64_t now_ns) noexcept {
  List& list = lists_[slot];
  if (queue_ == nullptr) {
    if (list.under_way && !team_->look(list.job)) return CopyQueue::kBusy;
    list.under_way = false;
    return 0;
  }
  if (queue_->flag(slot).load(std::memory_order_acquire) == list.value) return 0;
  if (list.asked_ns == 0) list.asked_ns = now_ns;
  if (now_ns < list.asked_ns + kAskAfterNs) return CopyQueue::kBusy;
  list.asked_ns = now_ns;
  const Code code = queue_->state();
  return code == 0 ? CopyQueue::kBusy : code;  // idle: the flag is there the next time
}

void PieceCopier::drain() noexcept {
  if (queue_ != nullptr) (void)queue_->drain();
  for (List& list : lists_) {
    while (list.under_way && !team_->look(list.job)) cpu_pause();
    list.under_way = false;
  }
}

}  // namespace towline::cuda
