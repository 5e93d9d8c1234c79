#include "transports/memory/network.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace towline::memory {

namespace {

std::atomic<const Network*> the_network{nullptr};

class NetworkLane final : public framing::Lane {
 public:
  NetworkLane(std::unique_ptr<framing::Lane> inner, const Network& network, const uint64_t self[2],
              const uint64_t peer[2])
      : inner_(std::move(inner)), network_(network) {
    std::copy_n(self, 2, self_);
    std::copy_n(peer, 2, peer_);
  }

  // The ring is what a network and its ends keep for the other side.
  framing::IoResult write(std::span<const iovec> pieces) noexcept override { return inner_->write(pieces); }
  framing::IoResult read(std::span<const iovec> pieces) noexcept override {
    return network_.passes(peer_, self_) ? inner_->read(pieces) : framing::IoResult::again();
  }
  // Nothing tells when the network is mended, so the worker must not sleep.
  bool arm(bool) noexcept override { return true; }
  void disarm() noexcept override { inner_->disarm(); }
  void close() noexcept override { inner_->close(); }
  void abandon() noexcept override { inner_->abandon(); }
  [[nodiscard]] std::string describe() const override { return inner_->describe() + ", simulated network"; }
  [[nodiscard]] Traits traits() const noexcept override { return inner_->traits(); }

 private:
  std::unique_ptr<framing::Lane> inner_;
  const Network& network_;
  uint64_t self_[2];
  uint64_t peer_[2];
};

}  // namespace

void use_network(const Network* network) noexcept { the_network.store(network, std::memory_order_release); }

const Network* current_network() noexcept { return the_network.load(std::memory_order_acquire); }

std::unique_ptr<framing::Lane> across_network(std::unique_ptr<framing::Lane> lane, const Network* network,
                                              const uint64_t self[2], const uint64_t peer[2]) {
  return std::make_unique<NetworkLane>(std::move(lane), *network, self, peer);
}

}  // namespace towline::memory
