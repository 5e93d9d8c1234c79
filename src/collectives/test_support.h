// Ranks as threads, for tests.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "collectives/calls/types.h"
#include "collectives/communicator.h"
#include "rendezvous/store.h"
#include "rendezvous/test_support.h"

namespace towline::collectives {

using rendezvous::eventually;
using rendezvous::run_threads;

struct World {
  int size = 2;
  uint32_t flags = 0;
  int ranks_per_host = 0;  // 0: all on one; else groups of this size share memory and use TCP between them
  bool strewn = false;     // ranks of a host are not consecutive
  std::string stage_bytes = "64KiB";
  uint64_t timeout_ns = 120 * kSecondNs;
  std::string backend = "cpu";
  std::string warn = "30s";
  std::string single_copy = "auto";
  std::map<std::string, std::string> hints = {};
  std::string key_file = "";  // of connections between hosts; empty: in the clear
};

inline std::shared_ptr<Communicator> join(const World& world, int rank,
                                          const std::shared_ptr<rendezvous::Store>& store,
                                          const std::string& name = "test") {
  CommunicatorOptions options;
  options.name = name;
  options.backend = world.backend;
  options.rank = rank;
  options.size = world.size;
  options.flags = world.flags;
  options.timeout_ns = world.timeout_ns;
  options.hints = world.hints;
  auto config = std::make_shared<Config>();
  config->set("tuning.collectives.stage_bytes", world.stage_bytes);
  config->set("tuning.collectives.flat_bytes", "8KiB");
  config->set("tuning.collectives.channel_bytes", "16KiB");
  config->set("tuning.collectives.leader_bytes", "8KiB");
  config->set("tuning.collectives.chunk_bytes", "64KiB");
  config->set("tuning.collectives.single_copy", world.single_copy);
  config->set("collectives.listen", "127.0.0.1:0");
  config->set("tuning.collectives.warn", world.warn);
  if (!world.key_file.empty()) config->set("secure.key_file", world.key_file);
  if (world.ranks_per_host != 0) {
    const int host = world.strewn ? rank % (world.size / world.ranks_per_host) : rank / world.ranks_per_host;
    config->set("collectives.host", std::to_string(host));
  }
  return Communicator::create(std::move(options), store, std::move(config));
}

// Runs the body as every rank, in a thread each, and waits. An exception of one fails the test.
inline void run_ranks(const World& world, const std::function<void(Communicator&)>& body) {
  auto store = std::make_shared<rendezvous::MemoryStore>();
  // By test, since each rank of the process counts its communicators of a name.
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  run_threads(world.size, [&](int rank) {
    const auto communicator = join(world, rank, store, name);
    body(*communicator);
    communicator->close();
  });
}

inline towline_collective_t call_of(uint32_t op, uint32_t datatype = TOWLINE_FLOAT32, uint64_t count = 0,
                                    const void* input = nullptr, void* output = nullptr) {
  towline_collective_t call = {};
  call.struct_size = sizeof call;
  call.op = op;
  call.datatype = datatype;
  call.count = count;
  call.input = input;
  call.output = output;
  return call;
}

// Runs it; a failure fails the test with its message.
inline void do_run(Communicator& communicator, const towline_collective_t& call) {
  std::string text;
  const Status status = communicator.run(call, nullptr, text);
  ASSERT_EQ(status, Status::kOk) << op_name(call.op) << ": " << text;
}

inline void do_barrier(Communicator& communicator) {
  do_run(communicator, call_of(TOWLINE_COLLECTIVE_BARRIER));
}

}  // namespace towline::collectives
