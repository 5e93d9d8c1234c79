// Without memory a request or an answer ends with bad_alloc, and nothing else does.
#include <gtest/gtest.h>

#include "metadata/etcd/codec.h"
#include "support/failing_new.h"

namespace towline::etcd {
namespace {

constexpr int kMostAllocations = 5000;

TEST(EtcdCodecWithoutMemory, WhatNeedsSomeEndsWithBadAlloc) {
  const std::string key(100, 'k');
  const std::string entry = R"({"key": ")" + to_base64(key) + R"(", "value": ")" + to_base64(key) + R"("})";
  const std::string range = R"({"header": {"revision": "7"}, "kvs": [)" + entry + "," + entry + "]}";
  const std::string watch = R"({"result": {"header": {}, "events": [{"kv": )" + entry + "}]}}";
  const std::string refused = R"({"error": {"message": "etcdserver: no leader, and a long reason"}})";
  for (const auto& call : std::initializer_list<void (*)(const std::string&, const std::string&)>{
           [](const std::string&text, const std::string&) { (void)decode_range(text); },
           [](const std::string&, const std::string&key) {
             (void)range_request({{key, key}, 3, 5, true});
           },
           [](const std::string&, const std::string&key) { (void)create_request(key, key, 9); },
           [](const std::string&, const std::string&key) { (void)authenticate_request(key, key); },
       }) {
    bool done = false;
    for (int after = 0; !done; ++after) {
      ASSERT_LT(after, kMostAllocations);
      support::fail_allocations(after);  // and all that follow
      try {
        call(range, key);
        done = true;
      } catch (const std::bad_alloc&) {
      }
      support::stop_failing();
    }
  }
  for (const bool stream : {true, false}) {
    bool done = false;
    for (int after = 0; !done; ++after) {
      ASSERT_LT(after, kMostAllocations);
      support::fail_allocations(after);
      try {
        if (stream)
          (void)decode_watch(watch);
        else
          (void)decode_refusal(503, refused);
        done = true;
      } catch (const std::bad_alloc&) {
      }
      support::stop_failing();
    }
  }
}

}  // namespace
}  // namespace towline::etcd
