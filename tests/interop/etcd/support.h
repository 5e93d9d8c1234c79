// Helpers of the etcd directory's tests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "support/etcd_servers.h"
#include "towline/directory.hpp"

namespace towline::interop {

using namespace std::chrono_literals;
using support::Etcd;
using support::EtcdOptions;
using support::FakeServer;
using support::free_port;
using support::Line;
using support::TemporaryFolder;
using SteadyClock = std::chrono::steady_clock;

// Short times, so that what takes them is over soon.
inline constexpr const char* kQuick =
    "[tuning.etcd]\nlease = \"2s\"\nattempt_timeout = \"1s\"\nconnect_timeout = \"1s\"\n";

inline Agent make_agent(const std::string& name, const std::string& config = kQuick) {
  return Agent(name, {.listen = "none", .config = config, .default_timeout = 20s});
}

// Says how long something took since `since`. For people: nothing is asserted of it.
inline void tell_time(const char* what, SteadyClock::time_point since) {
  std::printf("    %s: %.2f s\n", what, std::chrono::duration<double>(SteadyClock::now() - since).count());
}

template <class Ready>
bool eventually(Ready&& ready, SteadyClock::duration limit = 30s) {
  const auto until = SteadyClock::now() + limit;
  while (!ready()) {
    if (SteadyClock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}

// The next event of a watch, as text: "put key=value", "gone key", "synced", or the status.
inline std::string next_of(const Watch& watch, SteadyClock::duration limit = 30s) {
  DirectoryEvent event;
  const Status status = watch.next(event, limit);
  if (status != Status::kOk) return status_name(status);
  switch (event.what()) {
    case EventKind::kPut:
      return "put " + std::string(event.key()) + "=" + std::string(event.value());
    case EventKind::kGone:
      return "gone " + std::string(event.key());
    case EventKind::kSynced:
      return "synced";
  }
  return "?";
}

// The sentence of the error that `call` throws; "" when it throws none.
template <class Call>
std::string error_of(Call&& call, Status* code = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (code != nullptr) *code = error.code();
    return error.what();
  }
  return "";
}

// A test that needs etcd.
class WithEtcd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Etcd::installed()) GTEST_SKIP() << "there is no etcd here: install etcd-server";
  }
};

}  // namespace towline::interop
