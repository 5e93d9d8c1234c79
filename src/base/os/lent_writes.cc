#include "base/os/lent_writes.h"

#include <linux/errqueue.h>
#include <sys/socket.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace towline {
namespace {

#ifndef SO_ZEROCOPY
constexpr int SO_ZEROCOPY = 60;
#endif
#ifndef MSG_ZEROCOPY
constexpr int MSG_ZEROCOPY = 0x4000000;
#endif

}  // namespace

int LentWrites::allow(int fd) noexcept {
  const int on = 1;
  return ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0 ? 0 : errno;
}

StreamResult LentWrites::write(int fd, std::span<const iovec> pieces,
                               std::span<const uint8_t> control) noexcept {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  message.msg_control = const_cast<uint8_t*>(control.data());
  message.msg_controllen = control.size();
  const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_ZEROCOPY);
  if (sent > 0) {
    ++lent_;
    return {static_cast<std::size_t>(sent), StreamResult::Kind::kMoved, 0};
  }
  const int error = errno;
  const bool blocked = error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
  return {0, blocked ? StreamResult::Kind::kBlocked : StreamResult::Kind::kFailed, blocked ? 0 : error};
}

void LentWrites::collect(int fd) noexcept {
  while (lent_ != returned_) {
    alignas(cmsghdr) char control[128];
    msghdr message = {};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      sock_extended_err report;
      if (head->cmsg_len < CMSG_LEN(sizeof report)) continue;
      std::memcpy(&report, CMSG_DATA(head), sizeof report);
      if (report.ee_origin != SO_EE_ORIGIN_ZEROCOPY || report.ee_errno != 0) continue;
      copied_ = copied_ || (report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0;
      note(report.ee_info, report.ee_data);
    }
  }
}

// The kernel counts in 32 bits, and reports a range; ranges may come in any order.
void LentWrites::note(uint32_t first, uint32_t last) noexcept {
  const uint32_t from = first - static_cast<uint32_t>(returned_);
  const uint32_t count = last - first + 1;
  const auto under_way = static_cast<uint32_t>(lent_ - returned_);
  if (from >= under_way || count == 0 || count > under_way - from) return;
  const uint64_t ones = count == 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
  ahead_ |= ones << from;
  const int free = std::countr_one(ahead_);
  returned_ += static_cast<uint64_t>(free);
  ahead_ = free == 64 ? 0 : ahead_ >> free;
}

void LentWrites::drop(int fd) noexcept {
  sockaddr none = {};
  none.sa_family = AF_UNSPEC;
  (void)::connect(fd, &none, sizeof none);
}

}  // namespace towline
