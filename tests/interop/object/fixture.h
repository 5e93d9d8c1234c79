// An agent whose objects are at a server of the test's own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "proxy.h"
#include "support/azure_server.h"
#include "support/directed.h"
#include "support/loopback.h"
#include "support/s3_server.h"
#include "support/stamps.h"
#include "towline/storage.hpp"
#include "towline/towline.hpp"

namespace towline::interop {

inline constexpr uint64_t kMib = 1 << 20;

using namespace std::chrono_literals;
using support::AzureServer;
using support::first_difference;
using support::free_port;
using support::S3Server;
using support::stamp_bytes;
using support::TemporaryFolder;
inline constexpr const char* kAccessKey = S3Server::kAccessKey;
inline constexpr const char* kSecretKey = S3Server::kSecretKey;

inline AgentOptions options_for(const std::string& config) {
  AgentOptions options;
  options.listen = "none";
  options.config = config;
  options.default_timeout = 60s;
  return options;
}

class ObjectTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 32 << 20;

  // One server for a suite; a test that kills it has its own.
  static void SetUpTestSuite() {
    if (!S3Server::program().empty())
      server_ = std::make_unique<S3Server>(std::vector<std::string>{"bucket", "other"});
  }
  static void TearDownTestSuite() { server_.reset(); }

  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << S3Server::kMissing;
    memory_.resize(kBytes);
    connect(server_->url());
  }

  static std::string config_for(const std::string& endpoint, const std::string& more = {}) {
    return S3Server::config(endpoint, more);
  }
  void connect(const std::string& endpoint, const std::string& more = {}) {
    end_agent();
    agent_ = std::make_unique<Agent>("objects", options_for(config_for(endpoint, more)));
    region_ = std::make_unique<Region>(
        agent_->register_memory(dram(memory_.data(), memory_.size()), {.access = Access::kAll}));
  }
  // While the test's proxy still answers: without it an agent tries for ten seconds to abort its uploads.
  void end_agent() {
    region_.reset();
    agent_.reset();
  }

  [[nodiscard]] Region open(const std::string& key, const StorageOptions& options = {}) const {
    return agent_->register_storage("s3://bucket/" + key, options);
  }
  [[nodiscard]] BlockList in_memory(uint64_t offset, uint64_t bytes) {
    return agent_->block_list(Blocks::at(memory_.data() + offset, bytes));
  }
  [[nodiscard]] BlockList in_object(const Region& object, uint64_t offset, uint64_t bytes) const {
    return agent_->block_list(object.blocks(offset, bytes));
  }
  [[nodiscard]] Transfer transfer(Op op, uint64_t memory_offset, const Region& object, uint64_t offset,
                                  uint64_t bytes, const TransferOptions& options = {}) {
    return directed(*agent_, op, in_memory(memory_offset, bytes), in_object(object, offset, bytes), options);
  }
  static Status run(const Transfer& transfer) {
    const Status posted = transfer.post();
    return posted == Status::kInProgress ? transfer.wait(60s) : posted;
  }
  Status move(Op op, uint64_t memory_offset, const Region& object, uint64_t offset, uint64_t bytes) {
    return run(transfer(op, memory_offset, object, offset, bytes));
  }
  // An object with stamped contents, written past any proxy.
  void make_object(const std::string& key, uint64_t bytes, uint64_t seed) {
    const Agent agent("maker", options_for(config_for(server_->url())));
    std::vector<std::byte> contents(bytes);
    stamp_bytes(contents.data(), bytes, seed);
    const Region region = agent.register_memory(dram(contents.data(), bytes), {.access = Access::kAll});
    const Region object =
        agent.register_storage("s3://bucket/" + key, {.create = true, .truncate = true, .bytes = bytes});
    ASSERT_EQ(run(agent.transfer(agent.block_list(Blocks::at(contents.data(), bytes)),
                                 agent.block_list(object.blocks(0, bytes)))),
              Status::kOk);
  }
  // The error of registering.
  static std::pair<Status, std::string> refusal(const Agent& agent, const std::string& uri,
                                                const StorageOptions& options = {}) {
    try {
      (void)agent.register_storage(uri, options);
      return {Status::kOk, {}};
    } catch (const Error& error) {
      return {error.code(), error.what()};
    }
  }

  static inline std::unique_ptr<S3Server> server_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Agent> agent_;
  std::unique_ptr<Region> region_;
};

}  // namespace towline::interop
