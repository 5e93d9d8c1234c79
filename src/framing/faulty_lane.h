// Decorates a lane with faults by seed: moves less than it could, pauses each direction for a while, breaks
// the stream in the middle. It never loses, doubles or reorders bytes: a lane is a reliable stream, and the
// engine counts on that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "framing/fault_options.h"
#include "framing/lane.h"

namespace towline::framing {

class FaultyLane final : public Lane {
 public:
  // `now_ns` returns the time by which delays are measured, virtual in simulations.
  FaultyLane(std::unique_ptr<Lane> inner, const FaultOptions& options, std::function<uint64_t()> now_ns);

  [[nodiscard]] IoResult write(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] IoResult read(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] IoResult write_lent(std::span<const iovec> pieces) noexcept override;
  [[nodiscard]] bool lends() const noexcept override { return inner_->lends(); }
  [[nodiscard]] uint64_t lent() const noexcept override { return inner_->lent(); }
  [[nodiscard]] uint64_t returned() noexcept override { return inner_->returned(); }
  // During a pause it returns true: nothing else would end the sleep in time.
  [[nodiscard]] bool arm(bool want_write) noexcept override;
  void disarm() noexcept override { inner_->disarm(); }
  void close() noexcept override { inner_->close(); }
  void abandon() noexcept override { inner_->abandon(); }
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }
  // Without faults.
  [[nodiscard]] PayloadFlow* payload_flow() noexcept override { return inner_->payload_flow(); }

 private:
  using Method = IoResult (Lane::*)(std::span<const iovec>) noexcept;

  IoResult call(Method method, std::span<const iovec> pieces, uint64_t& paused_until) noexcept;
  std::span<const iovec> shortened(std::span<const iovec> pieces, std::size_t bytes) noexcept;

  std::unique_ptr<Lane> inner_;
  FaultOptions options_;
  std::function<uint64_t()> now_ns_;
  Random random_;
  uint64_t write_paused_until_ = 0;
  uint64_t read_paused_until_ = 0;
  uint64_t moved_ = 0;
  bool cut_ = false;
  std::vector<iovec> pieces_;
};

}  // namespace towline::framing
