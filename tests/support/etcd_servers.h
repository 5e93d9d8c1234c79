// Servers of tests with etcd: a real one in a process of its own, a proxy whose connection can be cut, and a fake server with
// any answers. Tests of clients include it too (tests/structure): nothing of Towline's is in it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/loopback.h"
#include "support/server_process.h"
#include "support/temporary_folder.h"

namespace towline::support {

struct EtcdOptions {
  std::string cert_file{};  // TLS with these
  std::string key_file{};
  std::string client_ca_file{};  // and clients have to show a certificate of this authority
};

class Etcd {
 public:
  static bool installed();
  explicit Etcd(const EtcdOptions& options = {});

  [[nodiscard]] std::string address() const;  // "127.0.0.1:12345"
  [[nodiscard]] uint16_t port() const { return port_; }
  void start();  // waits until it answers
  void stop(int signal) { process_.stop(signal); }
  void wipe() const;  // what it has stored; not while it runs
  void send(int signal) const { process_.send(signal); }
  // Asks the gateway by plain HTTP; the answer's body. Throws when it is not 200.
  [[nodiscard]] std::string post(const std::string& path, const std::string& json) const;

 private:
  const EtcdOptions options_;
  TemporaryFolder folder_;
  uint16_t port_ = 0;
  uint16_t peer_port_ = 0;
  ServerProcess process_;
};

// Carries connections to a port, until told otherwise.
class Line {
 public:
  enum class State { kOpen, kCut, kSilent };

  explicit Line(uint16_t to);
  ~Line();
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  [[nodiscard]] std::string address() const;
  void open() { become(State::kOpen); }
  void cut() { become(State::kCut); }                          // connections break, new ones too
  void silence() { become(State::kSilent); }                   // they stay, and carry nothing
  [[nodiscard]] unsigned carried() const { return carried_; }  // connections so far

 private:
  void become(State state);  // returns when it holds
  void run();

  const uint16_t to_;
  uint16_t port_ = 0;  // before what sets it
  int listener_ = -1;
  std::atomic<State> state_{State::kOpen};
  std::atomic<State> seen_{State::kOpen};
  std::atomic<bool> stop_{false};
  std::atomic<unsigned> carried_{0};
  std::thread thread_;
};

// An HTTP server of sorts: what it sends for a path is bytes that the test gives.
class FakeServer {
 public:
  // The answer to a request. `endless`: its last bytes are sent for ever.
  struct Answer {
    std::string bytes;
    bool endless = false;
    bool hold = false;  // then keep the connection, and say no more
  };
  using Handler = std::function<Answer(const std::string& path, const std::string& body)>;

  explicit FakeServer(Handler handler);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  [[nodiscard]] std::string address() const;
  [[nodiscard]] unsigned requests() const { return requests_; }

  // A whole answer with this status and body.
  static Answer http(int status, const std::string& body);

 private:
  void run();
  void serve(int fd);

  const Handler handler_;
  uint16_t port_ = 0;  // before what sets it
  int listener_ = -1;
  std::atomic<bool> stop_{false};
  std::atomic<unsigned> requests_{0};
  std::thread thread_;
  std::vector<std::thread> clients_;
};

}  // namespace towline::support
