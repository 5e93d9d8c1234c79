// What the domain `ucx` says to a peer that speaks UCX itself, and what it does where the peer breaks the rules: the connection
// ends, and nothing else happens.
#ifdef TOWLINE_HAVE_UCX

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "fabric/rails.h"
#include "fabric/ucx/ucx_library.h"

namespace towline::fabric::ucx_test {
namespace {

// As in ucx_connection.h.
struct Header {
  uint64_t number = 0;
  uint64_t key = 0;
  uint64_t place = 0;
  uint32_t length = 0;
  uint32_t kind = 0;
};
enum Kind : uint32_t {
  kRecord,
  kWrite,
  kRead,
  kReadData,
  kAcknowledge,
  kRefuse,
  kAskBlob,
  kBlob,
  kReads,
  kReadsData
};

template <class Plain>
void append(std::vector<uint8_t>& bytes, const Plain& value) {
  const auto* begin = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

struct Message {
  const char* what;
  std::vector<uint8_t> header;
  std::vector<uint8_t> data;
};

Message message(const char* what, const Header& header, std::size_t data_bytes = 0) {
  Message made{what, {}, std::vector<uint8_t>(data_bytes)};
  append(made.header, header);
  return made;
}

// With parts of a kReadsData behind the header.
Message with_parts(const char* what, std::vector<std::array<uint32_t, 2>> parts, std::size_t data_bytes,
                   uint32_t kind = kReadsData) {
  Message made = message(what, {.kind = kind}, data_bytes);
  for (const auto& part : parts) append(made.header, part);
  return made;
}

Message with_reads(const char* what, const std::vector<Header>& reads) {
  Message made = message(what, {.kind = kReads});
  for (const Header& read : reads) append(made.data, read);
  return made;
}

// One end of a connection, driven by the test.
class Peer {
 public:
  // `takes`: what it says behind its address.
  explicit Peer(std::string_view takes = {}) : takes{takes} {
    ucp_config_t* config = nullptr;
    check(ucx.ucp_config_read(nullptr, nullptr, &config));
    check(ucx.ucp_config_modify(config, "TLS", "tcp"));
    check(ucx.ucp_config_modify(config, ucx.minor() < 17 ? "RX_SEG_SIZE" : "TCP_RX_SEG_SIZE", "1028k"));
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_AM;
    check(ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &parameters, config, &context));
    ucx.ucp_config_release(config);
    ucp_worker_params_t wanted{};
    wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    wanted.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucx.ucp_worker_create(context, &wanted, &worker));
    ucp_am_handler_param_t handler{};  // without one UCX 1.13 ends the process when a message comes
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    handler.id = 1;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    handler.arg = this;
    handler.cb = [](void* self, const void*, size_t, void*, size_t bytes, const ucp_am_recv_param_t*) {
      static_cast<Peer*>(self)->received.push_back(bytes);
      return UCS_OK;
    };
    check(ucx.ucp_worker_set_am_recv_handler(worker, &handler));
  }
  ~Peer() {
    ucx.ucp_worker_destroy(worker);
    ucx.ucp_cleanup(context);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::vector<uint8_t> address() {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucx.ucp_worker_get_address(worker, &address, &bytes));
    const auto* begin = reinterpret_cast<const uint8_t*>(address);
    std::vector<uint8_t> copy{begin, begin + bytes};
    copy.insert(copy.end(), takes.begin(), takes.end());
    ucx.ucp_worker_release_address(worker, address);
    return copy;
  }
  void send(const std::vector<uint8_t>& to, const Message& sent) {
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    parameters.address = reinterpret_cast<const ucp_address_t*>(to.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    ucp_ep_h endpoint = nullptr;
    check(ucx.ucp_ep_create(worker, &parameters, &endpoint));
    ucp_request_param_t how{};
    how.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    how.flags = UCP_AM_SEND_FLAG_EAGER;
    const auto request = ucx.ucp_am_send_nbx(endpoint, 1, sent.header.data(), sent.header.size(),
                                             sent.data.data(), sent.data.size(), &how);
    ASSERT_FALSE(UCS_PTR_IS_ERR(request));
    if (request != nullptr) ucx.ucp_request_free(request);
  }
  void progress() { ucx.ucp_worker_progress(worker); }

  std::vector<std::size_t> received;  // the payload of each message

 private:
  static void check(ucs_status_t status) { ASSERT_EQ(status, UCS_OK); }

  const std::string takes;
  UcxLibrary& ucx = UcxLibrary::get();
  ucp_context_h context = nullptr;
  ucp_worker_h worker = nullptr;
};

// As in ucx_connection.cc.
constexpr std::string_view kReadsOnly = "towline ucx reads 1";
constexpr std::string_view kLargeAndReads = "towline ucx large 1towline ucx reads 1";

// The payloads of the messages that carry a write of 1 MiB and 1 byte to a peer which takes `takes`.
std::vector<std::size_t> messages_of_a_write(const std::string& rail_name, std::string_view takes) {
  constexpr std::size_t kBytes = (1 << 20) + 1;
  const auto rail = make_rail(rail_name);
  std::vector<uint8_t> bytes(kBytes);
  const Registration registration = rail->register_memory({.address = bytes.data(), .bytes = kBytes});
  Peer peer{takes};
  (void)rail->open(1, ConnectionEnd::kInitiator);
  rail->connect(1, peer.address());
  const WorkRequest write{.cookie = 1,
                          .local = reinterpret_cast<uint64_t>(bytes.data()),
                          .remote = 0,
                          .local_key = registration.local_key,
                          .remote_key = 1,
                          .immediate = 0,
                          .length = kBytes,
                          .kind = RequestKind::kWrite,
                          .signalled = true};
  EXPECT_EQ(rail->post(1, &write, 1), 1u);
  std::size_t sum = 0;
  for (const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs;
       sum < kBytes && monotonic_now_ns() < end_ns;) {
    peer.progress();
    Completion completion;
    (void)rail->poll(&completion, 1);
    sum = 0;
    for (const std::size_t one : peer.received) sum += one;
  }
  EXPECT_EQ(sum, kBytes);
  rail->stop(1);
  rail->release(1);
  return peer.received;
}

bool ends_with(const std::vector<uint8_t>& end, std::string_view what) {
  return end.size() > what.size() && std::equal(what.rbegin(), what.rend(), end.rbegin());
}

TEST(UcxMessages, LargeOnesGoToPeersThatTakeThem) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX has threads of its own, which ThreadSanitizer can't follow";
#endif
  EXPECT_EQ(messages_of_a_write("ucx:tcp", kLargeAndReads), (std::vector<std::size_t>{1 << 20, 1}));
  std::vector<std::size_t> pieces(32, 32 << 10);
  pieces.push_back(1);
  EXPECT_EQ(messages_of_a_write("ucx:tcp", kReadsOnly), pieces);
  EXPECT_EQ(messages_of_a_write("ucx:tcp", {}), pieces);
}

// Where the user chooses the size of UCX's buffers, a large message could be larger than one.
TEST(UcxMessages, LargeOnesAreNotAskedForWhereTheUserChoosesTheBuffers) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX has threads of its own, which ThreadSanitizer can't follow";
#endif
  EXPECT_TRUE(ends_with(make_rail("ucx:tcp")->open(1, ConnectionEnd::kResponder), kLargeAndReads));
  const std::string chosen =
      UcxLibrary::get().minor() < 17 ? "ucx:tcp?RX_SEG_SIZE=64k" : "ucx:tcp?TCP_RX_SEG_SIZE=64k";
  const auto end = make_rail(chosen)->open(1, ConnectionEnd::kResponder);
  EXPECT_TRUE(ends_with(end, kReadsOnly));
  EXPECT_FALSE(ends_with(end, kLargeAndReads));
  EXPECT_FALSE(ends_with(make_rail("ucx:auto")->open(1, ConnectionEnd::kResponder), kLargeAndReads));
}

// A peer would write past the end of a buffer that UCX has not made larger. UCX warns of a setting that it did not use.
TEST(UcxMessages, UcxTakesTheSizeOfItsBuffers) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX has threads of its own, which ThreadSanitizer can't follow";
#endif
  const auto printed_by = [](const char* rail) {
    ::testing::internal::CaptureStdout();
    std::string refused;
    try {
      (void)make_rail(rail)->open(1, ConnectionEnd::kResponder);
    } catch (const core::Error& error) {
      refused = error.message();
    }
    return ::testing::internal::GetCapturedStdout() + refused;
  };
  EXPECT_EQ(printed_by("ucx:tcp").find("RX_SEG_SIZE"), std::string::npos);
  EXPECT_NE(printed_by("ucx:tcp?NO_RX_SEG_SIZE=1").find("NO_RX_SEG_SIZE"), std::string::npos);
}

TEST(UcxMessages, WhatIsAgainstTheRulesEndsTheConnection) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "UCX has threads of its own, which ThreadSanitizer can't follow";
#endif
  const Header read{.number = 1, .length = 64, .kind = kRead};
  std::vector<Message> wrong = {
      {"a header cut short", std::vector<uint8_t>(8), {}},
      message("no kind", {.kind = 99}),
      message("a record without a receive", {.number = 1, .length = 4, .kind = kRecord}, 4),
      message("a write of another length", {.number = 1, .length = 8, .kind = kWrite}, 4),
      with_parts("a write with parts", {{1, 4}}, 4, kWrite),
      message("a read of nothing", {.number = 1, .kind = kRead}),
      message("the data of a read that nobody asked for", {.number = 7, .length = 4, .kind = kReadData}, 4),
      message("more arrived than was sent", {.number = 9, .kind = kAcknowledge}),
      message("reads without any", {.kind = kReads}),
      message("half a read", {.kind = kReads}, sizeof(Header) / 2),
      with_reads("reads with something else", {read, {.number = 1, .length = 64, .kind = kWrite}}),
      with_reads("reads of which one is of nothing", {read, {.number = 2, .kind = kRead}}),
      with_reads("more reads than may wait", std::vector<Header>(1025, read)),
      message("answers without parts", {.kind = kReadsData}, 4),
      with_parts("answers that nobody asked for", {{7, 4}}, 4),
      with_parts("an answer of number 0", {{0, 4}}, 4),
      with_parts("an answer longer than was asked for", {{1, 8}}, 8),
      with_parts("a part longer than the data", {{1, 4}}, 3),
      with_parts("data beyond the parts", {{1, 4}}, 5),
  };
  wrong.push_back(with_parts("half a part", {{1, 4}}, 4));
  wrong.back().header.resize(wrong.back().header.size() - 4);
  const auto rail = make_rail("ucx:tcp");
  std::array<uint8_t, 4> place{};
  const Registration registration = rail->register_memory({.address = place.data(), .bytes = place.size()});
  const WorkRequest asked{.cookie = 1,
                          .local = reinterpret_cast<uint64_t>(place.data()),
                          .remote = 0,
                          .local_key = registration.local_key,
                          .remote_key = 1,
                          .immediate = 0,
                          .length = 4,
                          .kind = RequestKind::kRead,
                          .signalled = false};
  uint32_t number = 0;
  for (const Message& one : wrong) {
    SCOPED_TRACE(one.what);
    Peer peer;
    const auto here = rail->open(++number, ConnectionEnd::kInitiator);
    rail->connect(number, peer.address());
    ASSERT_EQ(rail->post(number, &asked, 1), 1u);  // number 1, which the peer does not answer
    peer.send(here, one);
    std::optional<Completion> told;
    for (const uint64_t end_ns = monotonic_now_ns() + 20 * kSecondNs; !told && monotonic_now_ns() < end_ns;) {
      peer.progress();
      Completion completion;
      if (rail->poll(&completion, 1) == 1) told = completion;
    }
    ASSERT_TRUE(told);
    EXPECT_EQ(told->kind, CompletionKind::kConnectionDown);
    EXPECT_EQ(told->connection, number);
    EXPECT_EQ(told->status, Status::kProtocol);
    rail->stop(number);
    rail->release(number);
  }
}

}  // namespace
}  // namespace towline::fabric::ucx_test

#endif  // TOWLINE_HAVE_UCX
