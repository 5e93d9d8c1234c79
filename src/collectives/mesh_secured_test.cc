// Ranks whose connections begin with a handshake, in which the other side has a part.
#include <gtest/gtest.h>
#include <poll.h>

#include <future>

#include "collectives/mesh_frames.h"
#include "collectives/tcp_mesh.h"
#include "secure/test_support.h"

namespace towline::collectives {
namespace {

class SecuredMesh : public testing::Test {
 protected:
  static Deadline deadline() { return Deadline::after(monotonic_now_ns(), 60 * kSecondNs); }
  void SetUp() override {
    TOWLINE_NEEDS_TLS();
    keys_ = secure::Keys::read({folder_.file("key", secure::testing::key_text()), "", "", ""});
    infos_.resize(2);
    infos_[0].endpoints = {door_.address().text()};
  }
  Stream accepted() {
    Stream stream;
    int error = 0;
    while (!stream.valid()) stream = Stream::accepted(door_.accept(nullptr, &error));
    return stream;
  }
  const secure::testing::Folder folder_;
  secure::MaybeKeys keys_;
  ListeningSocket door_{{false, "127.0.0.1", 0}, {}};  // of rank 0
  std::vector<rendezvous::RankInfo> infos_;
  Breaker breaker_;
};

TEST_F(SecuredMesh, ARankThatIsHeldUpIsWaitedFor) {
  TcpMesh mesh(1, 2, "127.0.0.1:0", breaker_, 200 * kMillisecondNs, keys_);
  auto joined = std::async(std::launch::async, [&] { mesh.join(infos_, Id::random(), deadline()); });
  const Stream unanswered[] = {accepted(), accepted()};
  Stream rank = accepted();
  keys_->secure(rank, secure::Side::kCalled);
  std::array<uint8_t, kMeshHelloBytes> hello;
  EXPECT_EQ(rank.read_all(hello, deadline()), Status::kOk);
  EXPECT_NO_THROW(joined.get());
}

// A rank sleeps until something comes, or until it can go on with what it has to say.
TEST_F(SecuredMesh, CertificatesThatDoNotFitIntoASocketAreSent) {
  secure::testing::Authority authority(folder_);
  if (!authority.good()) GTEST_SKIP() << "the openssl program, which makes the certificates, is not there";
  const auto keys = secure::Keys::read(authority.sign_large("rank"));
  TcpMesh zero(0, 2, "127.0.0.1:0", breaker_, TcpMesh::kHelloNs, keys);
  secure::testing::shrink_listening_sockets();
  Stream caller = secure::testing::connect_narrow(parse_endpoint(zero.endpoints("127.0.0.1").front()).port);
  secure::secure(keys, caller, secure::Side::kCaller);
  std::vector<pollfd> polled;
  const auto turn = [&] {
    polled.clear();
    zero.poll_fds(polled);
    if (::poll(polled.data(), polled.size(), 1) > 0) zero.serve();
  };
  EXPECT_EQ(secure::testing::shake_hands_late(caller, turn), Status::kOk);
}

TEST_F(SecuredMesh, ABrokenCommunicatorWaitsForNobody) {
  TcpMesh mesh(1, 2, "127.0.0.1:0", breaker_, 200 * kMillisecondNs, keys_);
  auto joined = std::async(std::launch::async, [&] { mesh.join(infos_, Id::random(), deadline()); });
  const Stream unanswered = accepted();
  breaker_.record({Status::kCancelled, "aborted"});
  EXPECT_THROW(joined.get(), Error);
}

}  // namespace
}  // namespace towline::collectives
