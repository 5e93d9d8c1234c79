#include "transports/tcpx/sources/devmem_legacy.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace towline::tcpx {
namespace {

constexpr timeval kDaemonWait = {5, 0};

struct Answer {
  std::string text;
  UniqueFd fd;
};

// One request to one of the daemon's sockets. The answer is a text, or a descriptor alone.
class Daemon {
 public:
  Daemon(const std::string& folder, const std::string& name) : path_(folder + "/" + name) {
    const SocketAddress address = SocketAddress::unix_socket(path_);
    fd_ = UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd_.valid()) fail_errno(errno, "opening a Unix socket");
    for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
      (void)setsockopt(fd_.get(), SOL_SOCKET, option, &kDaemonWait, sizeof kDaemonWait);
    if (::connect(fd_.get(), address.get(), address.size()) != 0)
      fail_errno(errno, "connecting to the receive memory daemon at {}", path_);
  }

  Answer ask(const std::string& message) {
    for (std::size_t sent = 0; sent < message.size();) {
      const ssize_t n = ::send(fd_.get(), message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) fail_errno(errno, "asking the daemon at {}", path_);
      sent += static_cast<std::size_t>(n);
    }
    Answer answer;
    std::vector<uint8_t> bytes;
    std::size_t wanted = 2;
    while (bytes.size() < wanted) {
      if (take_some(bytes, wanted, answer.fd)) return answer;
      if (bytes.size() == 2 && wanted == 2) wanted = 2 + (std::size_t{bytes[0]} << 8 | bytes[1]);
      if (wanted > kMostDaemonBytes)
        fail(Status::kProtocol, "the daemon at {} announced an answer of {} bytes, which is too long", path_,
             wanted);
    }
    const auto text = decode_daemon_text(std::span(bytes).subspan(2));
    if (!text) fail(Status::kProtocol, "the daemon at {} gave an answer of an unknown format", path_);
    answer.text = *text;
    return answer;
  }

 private:
  // True: a descriptor arrived.
  bool take_some(std::vector<uint8_t>& bytes, std::size_t wanted, UniqueFd& descriptor) {
    uint8_t data[kMostDaemonBytes];
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))];
    iovec piece = {data, std::min(sizeof data, wanted - bytes.size())};
    msghdr message = {};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t n = ::recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
    if (n < 0) fail_errno(errno, "waiting for the daemon at {}", path_);
    if (n == 0) fail(Status::kClosed, "the daemon at {} closed the connection", path_);
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      descriptor.reset(fd);
      return true;
    }
    bytes.insert(bytes.end(), data, data + n);
    return false;
  }

  const std::string path_;
  UniqueFd fd_;
};

void ask_for_rule(const DaemonOptions& options, const char* socket, const FlowRule& rule) {
  const std::string message = encode_daemon_rule(rule, options.gpu);
  if (message.empty()) fail(Status::kInvalidArgument, "no flow rule can be made for {}", rule.text());
  const Answer answer = Daemon(options.folder, socket).ask(message);
  if (answer.text != "Ok.")
    fail(Status::kUnsupported, "the daemon refuses the flow rule \"{}\": {}", rule.text(),
         answer.text.substr(0, 200));
}

PoolMemory take_memory(const DaemonOptions& options, const plugin::Host* host) {
  if (options.gpu.empty())
    fail(Status::kUnsupported,
         "tuning.tcpx.daemon_gpu is not set: name the GPU whose memory the daemon serves");
  const Answer memory =
      Daemon(options.folder, "get_gpu_fd_" + options.gpu).ask(encode_daemon_text(options.gpu));
  if (!memory.fd.valid()) fail(Status::kNotFound, "the daemon returned no memory of {}", options.gpu);
  const Answer about =
      Daemon(options.folder, "get_gpu_metadata_" + options.gpu).ask(encode_daemon_text(options.gpu));
  const auto bytes = decode_daemon_memory_bytes(about.text);
  if (!bytes) fail(Status::kProtocol, "the daemon did not give the size of the memory of {}", options.gpu);
  std::string why_not = "tuning.tcpx.pool is host";
  if (host != nullptr) {
    try {
      return {{}, {}, std::make_unique<GpuPool>(*host, GpuPoolWish{options.gpu, *bytes, memory.fd.get()})};
    } catch (const core::Error& error) {
      why_not = error.message();
    }
  }
  try {
    if (file_bytes(memory.fd.get()) < *bytes) fail(Status::kMismatch, "it is smaller than the daemon says");
    return {Mapping::map_shared(memory.fd.get(), *bytes, MapAccess::kRead), {}, nullptr};
  } catch (const core::Error& error) {
    fail(Status::kUnsupported, "the daemon's memory of {} can be neither used by a GPU ({}) nor mapped ({})",
         options.gpu, why_not, error.message());
  }
}

}  // namespace

class DevmemLegacyProvider::Steered final : public DeviceMemorySource {
 public:
  Steered(int socket, SharedPool& pool, const DaemonOptions& options)
      : DeviceMemorySource(socket, kLegacy, pool, "devmem-legacy"), options_(options) {
    const FlowRule rule = {SocketAddress::peer_of(socket), SocketAddress::local_of(socket), 0};
    try {
      ask_for_rule(options_, "rx_rule_manager", rule);
      rule_ = rule;
    } catch (const core::Error& error) {
      TOWLINE_LOG_EVERY(kWarning, 10'000'000'000, "tcpx: payload is copied by the processor: {}",
                        error.message());
    }
  }
  ~Steered() override {
    if (!rule_) return;
    try {
      ask_for_rule(options_, "rx_rule_uninstall", *rule_);
    } catch (const std::exception& error) {
      TOWLINE_LOG(kWarning, "tcpx: the flow rule \"{}\" could not be removed: {}", rule_->text(),
                  error.what());
    }
  }

 private:
  const DaemonOptions& options_;
  std::optional<FlowRule> rule_;
};

DevmemLegacyProvider::DevmemLegacyProvider(const DaemonOptions& options, const plugin::Host* host)
    : options_(options), memory_(take_memory(options, host)) {
  pool_.pool = memory_.pool();
  pool_.pages = static_cast<uint32_t>(pool_.pool.bytes / kPoolPageBytes);
}

std::unique_ptr<Source> DevmemLegacyProvider::make(int socket) {
  return std::make_unique<Steered>(socket, pool_, options_);
}

}  // namespace towline::tcpx
