// The region pins that one frame holds.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "towline/plugin/backend.hpp"

namespace towline::framing {

class PinSet {
 public:
  explicit PinSet(std::size_t capacity) { pins_.reserve(capacity); }
  void add(void* pin) noexcept { pins_.push_back(pin); }  // within the capacity: no allocation
  void release(const plugin::Host& host) noexcept {
    for (void* pin : pins_) host.unpin(pin);
    pins_.clear();
  }
  void swap(PinSet& other) noexcept { pins_.swap(other.pins_); }

 private:
  std::vector<void*> pins_;
};

}  // namespace towline::framing
