// A store's server without memory: the client whose request needed it is dropped, and nothing else happens.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "rendezvous/tcp_store.h"
#include "support/failing_new.h"

namespace towline::rendezvous {
namespace {

constexpr int kMostAllocations = 5000;
const Bytes kValue(300, 7);

Deadline within(uint64_t ms) { return Deadline::after(monotonic_now_ns(), ms * kMillisecondNs); }

// Everything that a client does.
void visit(const std::string& endpoint, const std::string& name) {
  try {
    const auto store = open_tcp_store(endpoint, false, within(200));
    store->set("a key that is longer than what a string holds without memory, " + name, kValue);
    (void)store->get("a key that all know, and longer than what a string holds", within(200));
    (void)store->get("a key that nobody brings, and longer than what a string holds", within(5));
  } catch (const std::exception&) {  // Error, or this thread's own allocation
  }
}

class StoreWithoutMemory : public ::testing::TestWithParam<int> {};

TEST_P(StoreWithoutMemory, DropsTheClientThatNeededItAndServesTheOthers) {
  TcpStoreServer server("127.0.0.1:0");
  const std::string endpoint = "127.0.0.1:" + std::to_string(server.port());
  const auto good = open_tcp_store(endpoint, false, within(5000));
  good->set("a key that all know, and longer than what a string holds", kValue);
  // set() does not wait for the server; get() does: only a client that the server has taken is safe from what follows.
  ASSERT_EQ(good->get("a key that all know, and longer than what a string holds", within(5000)), kValue);
  for (int after = 0;; ++after) {
    ASSERT_LT(after, kMostAllocations);
    support::fail_allocations_anywhere(after, GetParam());
    visit(endpoint, "of the visitor");
    const bool failed = support::stop_failing_anywhere();
    ASSERT_EQ(good->get("a key that all know, and longer than what a string holds", within(5000)), kValue)
        << "after the failure of allocation " << after;
    if (!failed) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Failures, StoreWithoutMemory, ::testing::Values(1, 4));

}  // namespace
}  // namespace towline::rendezvous
