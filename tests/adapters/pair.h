// Two agents of this process, and memory of both.
#pragma once

#include <gtest/gtest.h>

#include <towline/queue.hpp>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>

namespace towline::adapters {

using namespace std::chrono_literals;

class PairTest : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr uint64_t kBlock = 4096;
  static constexpr uint64_t kBlocks = 64;
  static constexpr uint64_t kBytes = kBlock * kBlocks;

  // `far` makes progress only while somebody calls for it.
  void start(bool far_is_hosted = true) {
    AgentOptions options;
    options.backends = GetParam();
    options.listen = "127.0.0.1:0";
    options.default_timeout = 20s;
    near_ = std::make_unique<Agent>("near", options);
    if (!far_is_hosted) options.progress = Progress::kCaller;
    far_ = std::make_unique<Agent>("far", options);
    std::memset(mine_.data(), 1, kBytes);
    std::memset(theirs_.data(), 2, kBytes);
    near_region_ = std::make_unique<Region>(near_->register_memory(dram(mine_)));
    far_region_ = std::make_unique<Region>(far_->register_memory(dram(theirs_), {.access = Access::kAll}));
    peer_ = std::make_unique<Peer>(near_->add_peer(far_->metadata()));
    from_ = std::make_unique<BlockList>(
        near_->block_list(Blocks::at(mine_.data(), kBlock).repeat(kBlocks, kBlock)));
    to_ = std::make_unique<BlockList>(
        peer_->block_list(Blocks::at(theirs_.data(), kBlock).repeat(kBlocks, kBlock)));
  }
  void TearDown() override {
    to_.reset();
    from_.reset();
    peer_.reset();
    near_region_.reset();
    far_region_.reset();
    far_.reset();
    near_.reset();
  }

  Memory mine_{kBytes};
  Memory theirs_{kBytes};
  std::unique_ptr<Agent> near_;
  std::unique_ptr<Agent> far_;
  std::unique_ptr<Region> near_region_;
  std::unique_ptr<Region> far_region_;
  std::unique_ptr<Peer> peer_;
  std::unique_ptr<BlockList> from_;
  std::unique_ptr<BlockList> to_;
};

inline std::string name_of(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

}  // namespace towline::adapters
