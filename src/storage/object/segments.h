// The memory of a WRITE: segments in the order of the object's bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "http/request.h"
#include "towline/plugin/plan.h"

namespace towline::object {

// A stretch of one object in one go.
struct Stretch {
  uint32_t object = 0;  // the plan's number
  uint64_t begin = 0;   // in the object
  uint64_t end = 0;
  uint64_t plan_begin = 0;  // hull of its bytes in the plan
  uint64_t plan_end = 0;
  std::vector<towline_segment> segments;  // by offset in the object, without gaps
};

// The plan's stretches, one for each object. Throws plugin::Failure naming the gap or the overlap where an
// object's blocks are not one stretch.
std::vector<Stretch> stretches_of(const towline_plan& plan);

// The same without segments, for a plan in the order of the objects' bytes.
std::vector<Stretch> stretches_in_order(const towline_plan& plan);

// Bytes [begin, end) of the stretch's object.
class SegmentsBody final : public http::Body {
 public:
  SegmentsBody() = default;
  SegmentsBody(const Stretch& stretch, uint64_t begin, uint64_t end);
  [[nodiscard]] uint64_t bytes() const noexcept override { return end_ - begin_; }
  size_t read(std::byte* into, size_t room) noexcept override;
  void rewind() noexcept override;

  [[nodiscard]] uint32_t crc() const noexcept;
  [[nodiscard]] uint64_t crc64() const noexcept;
  [[nodiscard]] std::string sha256() const;  // 32 bytes
  [[nodiscard]] std::string md5() const;     // 16 bytes

 private:
  template <class Take>
  void each(Take&& take) const;

  const Stretch* stretch_ = nullptr;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  size_t first_ = 0;  // segment that `begin` lies in
  uint64_t at_ = 0;
  size_t segment_ = 0;
};

}  // namespace towline::object
