// For tests: a lane that keeps what it was lent until the test says otherwise.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "framing/lane.h"

namespace towline::framing::testing {

// Over another lane. Its bytes go out at once, as a network's first copies do; the lane has not let go of them, since
// it may have to send them again.
class LendingLane final : public Lane {
 public:
  explicit LendingLane(std::unique_ptr<Lane> inner) : inner_(std::move(inner)) {}

  IoResult write(std::span<const iovec> pieces) noexcept override { return inner_->write(pieces); }
  IoResult read(std::span<const iovec> pieces) noexcept override { return inner_->read(pieces); }
  IoResult write_lent(std::span<const iovec> pieces) noexcept override {
    const IoResult result = inner_->write(pieces);
    if (result.status == Status::kOk) ++lent_;
    for (const iovec& piece : pieces) least_piece_ = std::min(least_piece_, piece.iov_len);
    return result;
  }
  bool lends() const noexcept override { return true; }
  uint64_t lent() const noexcept override { return lent_; }
  uint64_t returned() noexcept override { return returned_; }
  bool arm(bool want_write) noexcept override { return inner_->arm(want_write); }
  void disarm() noexcept override { inner_->disarm(); }
  void close() noexcept override { inner_->close(); }
  void abandon() noexcept override {
    abandoned_ = true;
    inner_->abandon();
  }
  std::string describe() const override { return "lending"; }
  Traits traits() const noexcept override { return inner_->traits(); }

  void give_back() { returned_ = lent_; }
  void give_back(uint64_t calls) { returned_ += calls; }
  bool abandoned() const { return abandoned_; }
  std::size_t least_piece() const { return least_piece_; }

 private:
  std::unique_ptr<Lane> inner_;
  uint64_t lent_ = 0;
  uint64_t returned_ = 0;
  bool abandoned_ = false;
  std::size_t least_piece_ = SIZE_MAX;
};

}  // namespace towline::framing::testing
