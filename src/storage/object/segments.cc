#include "storage/object/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/copy/copy.h"
#include "base/copy/crc32c.h"
#include "base/copy/crc64.h"
#include "storage/object/signer.h"
#include "towline/plugin/backend.hpp"
#include "towline/plugin/cursor.hpp"

namespace towline::object {

namespace {

constexpr size_t kSegmentsAtOnce = 256;

struct Placed {
  towline_segment segment;
  uint64_t plan_begin;
};

bool in_order(const Placed& a, const Placed& b) noexcept {
  return a.segment.remote_region != b.segment.remote_region
             ? a.segment.remote_region < b.segment.remote_region
             : a.segment.remote < b.segment.remote;
}

std::vector<Placed> in_objects_order(const towline_plan& plan) {
  std::vector<Placed> all;
  plugin::Cursor cursor(plan, 0, plan.bytes);
  towline_segment segments[kSegmentsAtOnce];
  uint64_t position = 0;
  while (const size_t count = cursor.next(segments, kSegmentsAtOnce, UINT64_MAX)) {
    for (size_t i = 0; i < count; ++i) {
      all.push_back({segments[i], position});
      position += segments[i].length;
    }
  }
  if (!std::is_sorted(all.begin(), all.end(), in_order)) std::sort(all.begin(), all.end(), in_order);
  return all;
}

// Adds what is written next. Throws plugin::Failure.
void add(std::vector<Stretch>& stretches, const towline_segment& segment, uint64_t plan_begin) {
  const bool fresh = stretches.empty() || stretches.back().object != segment.remote_region;
  if (fresh) {
    stretches.push_back({segment.remote_region, segment.remote, segment.remote, plan_begin, plan_begin, {}});
  } else if (segment.remote < stretches.back().end) {
    throw plugin::Failure(Status::kInvalidArgument,
                          fmt::format("byte {} of the object is written twice", segment.remote));
  } else if (segment.remote > stretches.back().end) {
    throw plugin::Failure(
        Status::kUnsupported,
        fmt::format("bytes {} to {} of the object are left out: an object is written in one stretch",
                    stretches.back().end, segment.remote));
  }
  Stretch& stretch = stretches.back();
  stretch.end += segment.length;
  stretch.plan_begin = std::min(stretch.plan_begin, plan_begin);
  stretch.plan_end = std::max(stretch.plan_end, plan_begin + segment.length);
}

}  // namespace

std::vector<Stretch> stretches_of(const towline_plan& plan) {
  std::vector<Stretch> stretches;
  for (const auto& [segment, plan_begin] : in_objects_order(plan)) {
    add(stretches, segment, plan_begin);
    stretches.back().segments.push_back(segment);
  }
  return stretches;
}

std::vector<Stretch> stretches_in_order(const towline_plan& plan) {
  std::vector<Stretch> stretches;
  plugin::Cursor cursor(plan);
  towline_segment segments[kSegmentsAtOnce];
  uint64_t position = 0;
  while (const size_t count = cursor.next(segments, kSegmentsAtOnce, plan.bytes)) {
    for (size_t i = 0; i < count; ++i) {
      add(stretches, segments[i], position);
      position += segments[i].length;
    }
  }
  return stretches;
}

SegmentsBody::SegmentsBody(const Stretch& stretch, uint64_t begin, uint64_t end)
    : stretch_(&stretch), begin_(begin), end_(end) {
  const auto after = std::upper_bound(stretch.segments.begin(), stretch.segments.end(), begin,
                                      [](uint64_t at, const towline_segment& s) { return at < s.remote; });
  first_ = static_cast<size_t>(after - stretch.segments.begin()) - 1;
  rewind();
}

void SegmentsBody::rewind() noexcept {
  at_ = begin_;
  segment_ = first_;
}

size_t SegmentsBody::read(std::byte* into, size_t room) noexcept {
  size_t copied = 0;
  while (copied < room && at_ < end_) {
    const towline_segment& from = stretch_->segments[segment_];
    const uint64_t within = at_ - from.remote;
    const size_t count = std::min<uint64_t>({room - copied, from.length - within, end_ - at_});
    copy_bytes(into + copied, reinterpret_cast<const std::byte*>(from.local) + within, count);
    copied += count;
    at_ += count;
    if (within + count == from.length) ++segment_;
  }
  return copied;
}

template <class Take>
void SegmentsBody::each(Take&& take) const {
  uint64_t at = begin_;
  for (size_t i = first_; at < end_; ++i) {
    const towline_segment& from = stretch_->segments[i];
    const uint64_t within = at - from.remote;
    const size_t count = std::min(from.length - within, end_ - at);
    take(reinterpret_cast<const std::byte*>(from.local) + within, count);
    at += count;
  }
}

uint32_t SegmentsBody::crc() const noexcept {
  uint32_t crc = 0;
  each([&](const std::byte* data, size_t count) {
    crc = crc32c({reinterpret_cast<const uint8_t*>(data), count}, crc);
  });
  return crc;
}

uint64_t SegmentsBody::crc64() const noexcept {
  uint64_t crc = 0;
  each([&](const std::byte* data, size_t count) {
    crc = towline::crc64({reinterpret_cast<const uint8_t*>(data), count}, crc);
  });
  return crc;
}

std::string SegmentsBody::md5() const {
  Md5 hash;
  each([&](const std::byte* data, size_t count) { hash.add({data, count}); });
  return hash.finish();
}

std::string SegmentsBody::sha256() const {
  Sha256 hash;
  each([&](const std::byte* data, size_t count) { hash.add({data, count}); });
  return hash.finish();
}

}  // namespace towline::object
