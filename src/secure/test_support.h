// Keys and certificates for tests, in a folder of their own.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/os/socket_address.h"
#include "base/os/stream.h"
#include "secure/keys.h"

namespace towline::secure::testing {

class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "towline-keys-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    return at(name);
  }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Where not, tests of secured connections are skipped.
inline bool has_tls() {
  try {
    const Folder folder;
    (void)Keys::read({folder.file("key", std::string(40, 'k')), "", "", ""});
    return true;
  } catch (const Error&) {
    return false;
  }
}
#define TOWLINE_NEEDS_TLS()                   \
  if (!::towline::secure::testing::has_tls()) \
  GTEST_SKIP() << "OpenSSL 3 is not there, or was not when this was built"

inline std::string key_text(char letter = 'k') { return std::string(40, letter) + "\n"; }

// Of a socket, or of those that are accepted from it: less than a flight of certificates.
inline void shrink_send_buffer(int fd) {
  const int bytes = 4096;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes), 0);
}

// Of all sockets that this process listens at.
inline void shrink_listening_sockets() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0)
      shrink_send_buffer(fd);
  }
}

// Connected to a port of this host, with as little room as there may be: what its peer sends waits until it is read.
inline Stream connect_narrow(uint16_t port) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 60 * kSecondNs);
  const SocketAddress to = resolve({false, "127.0.0.1", port}, deadline).front();
  Stream stream = Stream::open(to.family());
  shrink_send_buffer(stream.fd());
  const int bytes = 2048;
  EXPECT_EQ(setsockopt(stream.fd(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes), 0);
  int error = stream.start_connect(to);
  if (error == EINPROGRESS && stream.wait(POLLOUT, deadline) != 0) error = stream.finish_connect();
  EXPECT_EQ(error, 0);
  return stream;
}

// Reads nothing until the other side has filled its socket; `turn` lets it go on, where it has no thread.
template <class Turn>
Status shake_hands_late(Stream& caller, Turn&& turn) {
  const Deadline deadline = Deadline::after(monotonic_now_ns(), 20 * kSecondNs);
  StreamResult shaken = caller.shake_hands();
  while (shaken.blocked() && !caller.ready(POLLIN) && !deadline.passed(monotonic_now_ns())) turn();
  while ((shaken = caller.shake_hands()).blocked()) {
    if (deadline.passed(monotonic_now_ns())) return Status::kTimedOut;
    turn();
  }
  return shaken.moved() ? Status::kOk : Status::kPeerLost;
}

// An authority, and certificates that it signs; made by the openssl program. False: there is none.
class Authority {
 public:
  explicit Authority(const Folder& folder, const std::string& name = "ca") : folder_(folder), name_(name) {
    good_ =
        run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
            name_ + " -keyout " + name_ + ".key -out " + name_ + ".pem");
  }
  bool good() const { return good_; }
  // `names`: "DNS:a.example.com,URI:spiffe://example.com/a".
  Keys::Files sign(const std::string& who, const std::string& names = {}, int days = 2) {
    folder_.file(who + ".ext", names.empty() ? "" : "subjectAltName=" + names + "\n");
    good_ = good_ &&
            run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + who +
                " -keyout " + who + ".key -out " + who + ".csr") &&
            run("openssl x509 -req -in " + who + ".csr -CA " + name_ + ".pem -CAkey " + name_ +
                ".key -CAcreateserial -days " + std::to_string(days) + " -extfile " + who + ".ext -out " +
                who + ".pem");
    return {"", folder_.at(who + ".pem"), folder_.at(who + ".key"), folder_.at(name_ + ".pem")};
  }
  // Of 24 KB, which is near what is taken.
  Keys::Files sign_large(const std::string& who) {
    std::string names = "DNS:" + who + ".example.com";
    for (int i = 1000; i < 1800; ++i) names += ",DNS:another-name-of-it-" + std::to_string(i) + ".ex";
    return sign(who, names);
  }

 private:
  bool run(const std::string& command) const {
    return std::system(("cd " + folder_.path() + " && " + command + " >>log 2>&1").c_str()) == 0;
  }
  const Folder& folder_;
  const std::string name_;
  bool good_ = false;
};

}  // namespace towline::secure::testing
