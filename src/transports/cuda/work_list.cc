#include "transports/cuda/work_list.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <towline/plugin/cursor.hpp>

#include "base/error.h"

namespace towline::cuda {

namespace {

constexpr size_t kListWindow = 256;
constexpr uint64_t kWorthJoining = 4;  // blocks in a segment, on average

void set_addresses(const towline_segment& segment, const Ways& ways, uint64_t position, uint64_t& to,
                   uint64_t& from) noexcept {
  const uint64_t local = segment.local + ways.local[segment.local_region];
  const uint64_t remote = segment.remote + ways.remote[segment.remote_region];
  to = ways.gathered ? position : ways.read ? local : remote;
  from = ways.read ? remote : local;
}

Side side_of(const towline_list& list, uint64_t first, uint64_t step, const uint64_t* deltas) noexcept {
  const towline_extent& extent = list.extents[0];
  Side side{};
  side.address = extent.address + deltas[extent.region];
  side.first = first;
  side.step = step;
  side.dimensions = extent.dimensions;
  for (uint32_t d = 0; d < kSideDimensions; ++d) {
    side.count[d] = d < extent.dimensions ? extent.count[d] : 1;
    side.stride[d] = d < extent.dimensions ? extent.stride[d] : 0;
  }
  return side;
}

bool is_line(const towline_list& list) noexcept {
  return list.extents != nullptr && list.extent_count == 1 && list.extents[0].dimensions <= 1;
}

uint64_t bits_of(const Side& side) noexcept {
  uint64_t bits = side.address;
  for (uint32_t d = 0; d < side.dimensions; ++d)
    if (side.count[d] > 1) bits |= side.stride[d];
  return bits;
}

}  // namespace

static_assert(kSideDimensions == TOWLINE_EXTENT_DIMENSIONS);

WorkList::WorkList(const towline_plan& plan, const Ways& ways, std::shared_ptr<CopyQueue> queue)
    : plan_(plan), queue_(std::move(queue)) {
  towline_segment segments[kListWindow];
  plugin::Cursor cursor{plan};
  const size_t count = cursor.next(segments, kListWindow, plan.bytes);
  const bool joined = plan.block_length == 0 ||
                      (count != 0 && cursor.position() / count >= kWorthJoining * plan.block_length);
  if (count == 1 && cursor.done())
    make_one_piece(segments[0], ways);
  else if (joined)
    make_pieces(ways);
  else if (!make_strided(ways))
    make_pairs(ways);
}

WorkList::~WorkList() {
  if (list_.host != nullptr) queue_->release_list(list_);
}

void WorkList::set_piece_bytes(uint64_t bytes) noexcept {
  job_.piece_bytes = bytes;
  job_.chunk_bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, kChunkBytes));
  job_.chunks_per_piece = static_cast<uint32_t>((bytes + job_.chunk_bytes - 1) / job_.chunk_bytes);
  const auto for_depth = std::bit_ceil(std::max(job_.chunk_bytes / kBytesPerThread, 1u));
  const auto for_width = std::min(std::bit_ceil((job_.chunk_bytes + 15) / 16), 8u);
  job_.threads = std::min(std::max(for_depth, for_width), 32u);
}

// Cut into chunks of its own, each a piece.
void WorkList::make_one_piece(const towline_segment& segment, const Ways& ways) {
  one_piece_ = true;
  job_.form = Form::kStrided;
  set_piece_bytes(kChunkBytes);
  set_addresses(segment, ways, 0, job_.to.address, job_.from.address);
  for (Side* side : {&job_.to, &job_.from}) {
    side->step = 1;
    side->dimensions = 1;
    std::fill(std::begin(side->count), std::end(side->count), 1);
    side->count[0] = (plan_.bytes + kChunkBytes - 1) / kChunkBytes;
    side->stride[0] = kChunkBytes;
  }
  job_.aligned = ((job_.to.address | job_.from.address) & 15) == 0;
}

bool WorkList::make_strided(const Ways& ways) {
  if (plan_.run_count != 1 || plan_.block_length == 0) return false;
  for (const towline_list* list : {plan_.local, plan_.remote})
    if (list->extents == nullptr || list->extent_count != 1) return false;
  const Side local = side_of(*plan_.local, plan_.runs[0].local_block, plan_.local_step, ways.local);
  const Side remote = side_of(*plan_.remote, plan_.runs[0].remote_block, plan_.remote_step, ways.remote);
  job_.form = Form::kStrided;
  job_.to = ways.gathered ? gathered_side() : ways.read ? local : remote;
  job_.from = ways.read ? remote : local;
  set_piece_bytes(plan_.block_length);
  job_.aligned = ((bits_of(job_.to) | bits_of(job_.from) | plan_.block_length) & 15) == 0;
  return true;
}

Side WorkList::gathered_side() const noexcept {
  Side side{};
  side.step = 1;
  side.dimensions = 1;
  std::fill(std::begin(side.count), std::end(side.count), 1);
  side.count[0] = plan_.blocks;
  side.stride[0] = plan_.block_length;
  return side;
}

void WorkList::make_pairs(const Ways& ways) {
  job_.form = Form::kPairs;
  const uint64_t length = plan_.block_length;
  set_piece_bytes(length);
  list_ = queue_->make_list(plan_.blocks * sizeof(Pair));
  auto* pair = static_cast<Pair*>(list_.host);
  if (is_line(*plan_.local) && is_line(*plan_.remote)) return fill_from_lines(pair, ways);
  uint64_t bits = length;
  uint64_t position = 0;
  towline_segment segments[kListWindow];
  plugin::Cursor cursor{plan_};
  while (const size_t count = cursor.next(segments, kListWindow, plan_.bytes)) {
    for (size_t i = 0; i < count; ++i) {
      Pair next{};
      set_addresses(segments[i], ways, position, next.to, next.from);
      position += segments[i].length;
      bits |= next.to | next.from;
      for (uint64_t at = 0; at < segments[i].length; at += length) *pair++ = {next.to + at, next.from + at};
    }
  }
  job_.aligned = (bits & 15) == 0;
  finish_list();
}

// Both lists are one stride each, so only runs have to be followed.
void WorkList::fill_from_lines(Pair* pair, const Ways& ways) {
  const Side local = side_of(*plan_.local, 0, plan_.local_step, ways.local);
  const Side remote = side_of(*plan_.remote, 0, plan_.remote_step, ways.remote);
  const Side& to = ways.read ? local : remote;
  const Side& from = ways.read ? remote : local;
  uint64_t position = 0;
  for (uint64_t r = 0; r < plan_.run_count; ++r) {
    const towline_run& run = plan_.runs[r];
    uint64_t to_block = ways.read ? run.local_block : run.remote_block;
    uint64_t from_block = ways.read ? run.remote_block : run.local_block;
    for (uint32_t i = 0; i < run.count; ++i) {
      const uint64_t there = ways.gathered ? position : to.address + to_block * to.stride[0];
      *pair++ = {there, from.address + from_block * from.stride[0]};
      position += plan_.block_length;
      to_block += to.step;
      from_block += from.step;
    }
  }
  const uint64_t to_bits = ways.gathered ? 0 : bits_of(to);
  job_.aligned = ((to_bits | bits_of(from) | plan_.block_length) & 15) == 0;
  finish_list();
}

void WorkList::make_pieces(const Ways& ways) {
  job_.form = Form::kPieces;
  job_.chunks_per_piece = 1;
  job_.threads = 32;
  std::vector<Piece> pieces;
  uint64_t bits = 0;
  uint64_t position = 0;
  towline_segment segments[kListWindow];
  plugin::Cursor cursor{plan_};
  while (const size_t count = cursor.next(segments, kListWindow, plan_.bytes)) {
    for (size_t i = 0; i < count; ++i) {
      Piece piece{};
      set_addresses(segments[i], ways, position, piece.to, piece.from);
      bits |= piece.to | piece.from | segments[i].length | position;
      for (uint64_t left = segments[i].length; left != 0; left -= piece.length) {
        piece.position = position;
        piece.length = std::min(left, kLongestPiece);
        pieces.push_back(piece);
        piece.to += piece.length;
        piece.from += piece.length;
        position += piece.length;
      }
    }
  }
  job_.aligned = (bits & 15) == 0;
  pieces_ = pieces.size();
  list_ = queue_->make_list(pieces.size() * sizeof(Piece));
  std::memcpy(list_.host, pieces.data(), pieces.size() * sizeof(Piece));
  finish_list();
}

// Launches come after the upload: they are on the same queue.
void WorkList::finish_list() {
  job_.list = list_.gpu;
  if (const Code code = queue_->upload(list_); code != 0) {
    queue_->release_list(list_);
    list_ = {};
    fail(Status::kIo, "cuda: sending a page list to the GPU failed with code {}", code);
  }
}

CopyJob WorkList::job(uint64_t begin, uint64_t end) const noexcept {
  CopyJob job = job_;
  job.begin = begin;
  job.end = end;
  job.aligned = job_.aligned != 0 && ((begin | end) & 15) == 0;
  if (job.form != Form::kPieces) {
    job.first_piece = begin / job.piece_bytes;
    job.pieces = (end + job.piece_bytes - 1) / job.piece_bytes - job.first_piece;
    return job;
  }
  const auto* const first = static_cast<const Piece*>(list_.host);
  const auto* const last = first + pieces_;
  const auto ends_before = [](const Piece& piece, uint64_t at) {
    return piece.position + piece.length <= at;
  };
  const auto begins_before = [](const Piece& piece, uint64_t at) { return piece.position < at; };
  const auto* const from = std::lower_bound(first, last, begin, ends_before);
  const auto* const to = std::lower_bound(from, last, end, begins_before);
  job.first_piece = static_cast<uint64_t>(from - first);
  job.pieces = static_cast<uint64_t>(to - from);
  return job;
}

uint32_t useful_blocks(const CopyJob& job, uint32_t limit) noexcept {
  const uint64_t threads = chunks_of(job) * job.threads;
  const uint64_t blocks = (threads + most_threads(job) - 1) / most_threads(job);
  return static_cast<uint32_t>(std::clamp<uint64_t>(blocks, 1, std::max(limit, 1u)));
}

}  // namespace towline::cuda
