#include "storing/calls/job.h"

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace towline::calls {

namespace {

constexpr size_t kSegments = 64;

Status status_of(const Piece& piece, bool write) noexcept {
  if (piece.result < 0) return status_from_errno(static_cast<int>(-piece.result));
  return write ? Status::kIo : Status::kShort;
}

}  // namespace

Job::Job(Prepared& prepared_plan, const towline_submit_args& args, storing::OwnConnection* of)
    : prepared(prepared_plan),
      begin(args.begin),
      end(args.end),
      cookie(args.cookie),
      urgent((args.flags & TOWLINE_SUBMIT_URGENT) != 0),
      message(static_cast<const uint8_t*>(args.message),
              static_cast<const uint8_t*>(args.message) + args.message_bytes),
      connection(of),
      cursor_(*prepared_plan.plan, args.begin, args.end) {}

bool Job::take(const PoolSettings& settings, std::vector<Piece>& pieces) noexcept {
  towline_segment segments[kSegments];
  const size_t most = std::min<size_t>(settings.batch, kSegments);
  uint64_t position = 0;
  size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return false;
    position = cursor_.position();
    count = cursor_.next(segments, most, settings.turn_bytes(end - begin));
  }
  pieces.clear();  // its capacity is twice the batch: a segment is cut at most once a piece's size
  const towline_plan& plan = *prepared.plan;
  for (size_t i = 0; i < count; ++i) {
    const towline_segment& segment = segments[i];
    const towline_region_ref& local = plan.local->regions[segment.local_region];
    for (uint64_t done = 0; done < segment.length;) {
      const uint64_t bytes = std::min(segment.length - done, settings.piece_bytes);
      pieces.push_back({.file = prepared.files[segment.remote_region],
                        .handle = prepared.handles[segment.remote_region],
                        .memory = segment.local + done,
                        .offset = segment.remote + done,
                        .bytes = bytes,
                        .position = position,
                        .kind = local.kind,
                        .device = static_cast<uint32_t>(local.device)});
      done += bytes;
      position += bytes;
    }
  }
  return !pieces.empty();
}

bool Job::work(Caller& caller, const PoolSettings& settings, std::vector<Piece>& pieces) noexcept {
  if (!take(settings, pieces)) return false;
  // A piece that came short goes on where it stopped.
  while (!pieces.empty()) {
    caller.move(prepared.write, pieces);
    for (Piece& piece : pieces) note(piece);
    std::erase_if(pieces, [](const Piece& piece) {
      return piece.result <= 0 || static_cast<uint64_t>(piece.result) >= piece.bytes;
    });
    for (Piece& piece : pieces) {
      const auto moved = static_cast<uint64_t>(piece.result);
      piece.memory += moved;
      piece.offset += moved;
      piece.position += moved;
      piece.bytes -= moved;
      piece.result = 0;
    }
  }
  return true;
}

void Job::note(const Piece& piece) noexcept {
  if (piece.result > 0) {
    const std::lock_guard lock(mutex_);
    moved_ += std::min(static_cast<uint64_t>(piece.result), piece.bytes);
    return;
  }
  if (!piece.fenced) {
    const std::lock_guard lock(mutex_);
    fenced_ = false;
  }
  const int code = piece.code != 0 ? piece.code : static_cast<int>(-piece.result);
  failed(status_of(piece, prepared.write), code, piece.position, piece.position + piece.bytes);
}

void Job::failed(Status status, int code, uint64_t first, uint64_t last) noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  // The failure that comes first in the plan is kept.
  if (status_ != Status::kOk && failed_begin_ != failed_end_ && failed_begin_ <= first) return;
  status_ = status;
  code_ = code;
  failed_begin_ = first;
  failed_end_ = last;
}

void Job::stop(Status status) noexcept {
  const std::lock_guard lock(mutex_);
  if (stopped_ || cursor_.done()) return;
  stopped_ = true;
  status_ = status;
  failed_begin_ = cursor_.position();
  failed_end_ = end;
}

void Job::sync_files() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (status_ != Status::kOk) return;
  }
  const PlainFile* last = nullptr;  // neighbours of one file are the rule
  for (const PlainFile* file : prepared.files) {
    if (file == last || !file->syncs()) continue;
    last = file;
    if (const int error = file->sync(); error != 0) failed(status_from_errno(error), error, begin, end);
  }
}

towline_part_result Job::result() const noexcept {
  const std::lock_guard lock(mutex_);
  auto result = plugin::sized<towline_part_result>();
  result.status = static_cast<int32_t>(status_);
  result.vendor_code = code_;
  if (fenced_) result.fences = TOWLINE_PART_FENCED_LOCAL | TOWLINE_PART_FENCED_REMOTE;
  result.bytes = std::min(moved_, end - begin);
  result.failed_begin = failed_begin_;
  result.failed_end = failed_end_;
  return result;
}

}  // namespace towline::calls
