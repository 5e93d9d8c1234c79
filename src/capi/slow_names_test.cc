// A communicator whose meeting place has a name that takes long to look up.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <string_view>

#include "support/ports.h"
#include "towline/collectives.h"
#include "towline/towline.h"

namespace {
constexpr std::string_view kSlowHost = "slow.test";
constexpr std::string_view kSilentHost = "silent.test";
std::atomic<bool> silent_host_asked{false};
std::atomic<bool> silent_host_answers{false};
}  // namespace

// Takes the place of the C library's, as a name server that answers late.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** list) {
  static const auto look_up = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool silent = host != nullptr && host == kSilentHost;
  if (host == nullptr || (host != kSlowHost && !silent)) return look_up(host, service, hints, list);
  if (hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0) return EAI_NONAME;
  if (silent) {
    silent_host_asked = true;
    silent_host_answers.wait(false);
    return EAI_AGAIN;
  }
  (void)::poll(nullptr, 0, 700);
  return look_up("127.0.0.1", service, hints, list);
}

namespace towline {
namespace {

TEST(CollectivesInC, AnApplicationThatCanEndTheWaitWaitsForSlowNamesAsWell) {
  const std::string place = "tcp://" + std::string(kSlowHost) + ":" + std::to_string(support::free_port());
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.size = 1;
  options.bootstrap = place.c_str();
  options.timeout_ns = 20'000'000'000;
  options.interrupted = [](void*) -> int32_t { return 0; };
  towline_communicator_t* made = nullptr;
  EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_OK) << towline_last_error();
  EXPECT_EQ(towline_communicator_destroy(made), TOWLINE_OK);
}

TEST(CollectivesInC, AnApplicationEndsTheWaitForANameThatNoServerAnswers) {
  const std::string place = "tcp://" + std::string(kSilentHost) + ":1";
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.rank = 1;
  options.size = 2;
  options.bootstrap = place.c_str();
  options.timeout_ns = 10'000'000'000;
  options.interrupted = [](void*) -> int32_t { return silent_host_asked ? 1 : 0; };
  towline_communicator_t* made = nullptr;
  EXPECT_EQ(towline_communicator_create(&options, &made), TOWLINE_CANCELLED) << towline_last_error();
  EXPECT_TRUE(silent_host_asked);
  silent_host_answers = true;
  silent_host_answers.notify_all();
}

}  // namespace
}  // namespace towline
