#include "base/os/socket_user.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/error.h"
#include "base/os/socket_address.h"

namespace towline {
namespace {

using Where = SocketUser::Where;

// A connection to a listening socket, made by a child as this user, or as another; the child keeps its end open
// until it is told to end.
class Visit {
 public:
  Visit(const ListeningSocket& door, const SocketAddress& to, uid_t user) {
    if (pipe(end_) != 0 || pipe(made_) != 0) std::abort();
    child_ = fork();
    if (child_ == 0) {
      close(end_[1]);
      if (setresuid(user, user, user) != 0) _exit(1);
      const UniqueFd own = open_stream_socket(to.family());
      (void)start_connect(own.get(), to);
      char byte = 'c';
      if (write(made_[1], &byte, 1) != 1) _exit(1);
      (void)!read(end_[0], &byte, 1);
      _exit(0);
    }
    char byte = 0;
    if (read(made_[0], &byte, 1) != 1) return;
    int error = 0;
    auto accepting = const_cast<ListeningSocket*>(&door);
    while (!fd.valid() && error == 0) fd = accepting->accept(nullptr, &error);
  }
  ~Visit() { leave(); }
  void leave() {
    if (child_ < 0) return;
    for (const int side : {end_[0], end_[1], made_[0], made_[1]}) close(side);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }
  UniqueFd fd;

 private:
  int end_[2];
  int made_[2];
  pid_t child_ = -1;
};

class SocketUserTest : public ::testing::TestWithParam<const char*> {
 protected:
  ListeningSocket door_{parse_endpoint(GetParam())};
  [[nodiscard]] SocketAddress address() const {
    if (!door_.address().is_any()) return door_.address();
    return *numeric_address(parse_endpoint("127.0.0.1:" + std::to_string(door_.address().port())));
  }
};

TEST_P(SocketUserTest, IsOursWhenWeConnect) {
  Visit visit(door_, address(), geteuid());
  ASSERT_TRUE(visit.fd.valid());
  SocketUsers users;
  const SocketUser user = users.find(visit.fd.get());
  EXPECT_EQ(user.where, Where::kHere);
  EXPECT_EQ(user.user, geteuid());
  EXPECT_EQ(socket_user_from_proc(visit.fd.get()).where, Where::kHere);
  EXPECT_EQ(users.refusal(visit.fd.get()).text, nullptr);
}

TEST_P(SocketUserTest, IsAnothersWhenAnotherUserConnects) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to become another user";
  Visit visit(door_, address(), 65534);
  ASSERT_TRUE(visit.fd.valid());
  SocketUsers users;
  const SocketUser user = users.find(visit.fd.get());
  EXPECT_EQ(user.where, Where::kHere);
  EXPECT_EQ(user.user, 65534u);
  EXPECT_EQ(socket_user_from_proc(visit.fd.get()).user, 65534u);
  EXPECT_EQ(SocketUsers().refusal(visit.fd.get()).status, Status::kPermissionDenied);
}

// The kernel names root as the owner of a socket that was closed with bytes still to deliver.
TEST_P(SocketUserTest, IsNobodysWhenTheOtherEndWasClosed) {
  if (address().is_unix()) return;  // the kernel remembers who connected
  Visit visit(door_, address(), geteuid());
  ASSERT_TRUE(visit.fd.valid());
  visit.leave();
  EXPECT_EQ(SocketUsers().find(visit.fd.get()).where, Where::kGone);
  EXPECT_EQ(socket_user_from_proc(visit.fd.get()).where, Where::kGone);
  EXPECT_EQ(SocketUsers().refusal(visit.fd.get()).status, Status::kPeerLost);
}

TEST_P(SocketUserTest, IsFoundWithoutADescriptorAndElseSaidNotToBe) {
  if (address().is_unix()) return;
  Visit visit(door_, address(), geteuid());
  ASSERT_TRUE(visit.fd.valid());
  SocketUsers users;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const UserRefusal refusal = users.refusal(visit.fd.get());
  const Where by_proc = socket_user_from_proc(visit.fd.get()).where;
  const UserRefusal late = SocketUsers().refusal(visit.fd.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(refusal.text, nullptr) << refusal.text;
  EXPECT_EQ(by_proc, Where::kNoRoom);
  EXPECT_EQ(late.status, status_from_errno(EMFILE));
  EXPECT_NE(std::string(late.text).find("may try again"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Addresses, SocketUserTest,
                         ::testing::Values("127.0.0.1:0", "[::1]:0", "*:0", "unix:@towline-socket-user-test"),
                         [](const auto& at) { return "at_" + std::to_string(at.index); });

}  // namespace
}  // namespace towline
