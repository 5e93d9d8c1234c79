// An etcd as a directory: one thread that carries out calls, keeps keys alive and follows what is watched.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/thread.h"
#include "metadata/etcd/caller.h"
#include "metadata/etcd/keeper.h"
#include "metadata/etcd/watch.h"
#include "towline/plugin/v1.h"

namespace towline::etcd {

// Callbacks of the client. Called on its thread without locks; keys are relative to the namespace.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void done(uint64_t call, Status status, const std::string& text,
                    const std::vector<KeyValue>& items) = 0;
  virtual void event(uint64_t watch, const Watch::Event& event) = 0;
  virtual void log(int level, const std::string& text) = 0;
};

struct CallArgs {
  uint64_t number = 0;
  uint32_t op = 0;     // towline_directory_op_t
  uint32_t flags = 0;  // TOWLINE_DIRECTORY_*
  std::string key;
  std::string value;
  uint64_t deadline_ns = 0;
};

class Client {
 public:
  // `listener` outlives it.
  Client(Options options, Listener& listener);
  ~Client();  // without close(): leaves what is leased to run out
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Any thread. kAgain: too many are under way.
  [[nodiscard]] Status submit(CallArgs args);
  void cancel(uint64_t call);
  void watch(uint64_t number, std::string prefix, uint32_t flags);
  void unwatch(uint64_t number);
  [[nodiscard]] std::string describe();
  // Ends everything, and gives the lease back until the deadline. Not on the client's thread.
  void close(uint64_t deadline_ns);

 private:
  struct Call {
    CallArgs args;
    std::vector<KeyValue> found;
    std::size_t found_bytes = 0;
    std::unique_ptr<Lister> lister;
    std::unique_ptr<Watch> watch;
    Timers::Id deadline = 0;
    Timers::Id last = 0;
  };

  void take(CallArgs args);
  void start(Call& call);
  void begin(Call& call);
  void get(Call& call);
  void wait_for(Call& call);
  void put(Call& call);
  void remove(Call& call);
  void finish(uint64_t number, Status status, const std::string& text = {});
  void next_write(const std::string& key, uint64_t ended);
  void start_watch(uint64_t number, std::string prefix, uint32_t flags);
  void stop_watch(uint64_t number);
  void make_room();
  void bury(std::unique_ptr<Watch> watch) noexcept;
  void count_end(uint64_t bytes) noexcept;
  void server_failed(std::size_t server, const std::string& why);
  void pulse();
  void shut(uint64_t deadline_ns);
  [[nodiscard]] std::string describe_here() const;
  [[nodiscard]] std::string full_key(std::string_view key) const;
  [[nodiscard]] KeyValue relative(KeyValue item) const;
  [[nodiscard]] Span span_of(const CallArgs& args) const;

  const Options options_;
  Listener& listener_;
  http::Thread thread_;
  Timers& timers_;
  Posts posts_;
  Caller caller_;
  Keeper keeper_;
  std::map<uint64_t, Call> calls_;
  std::map<std::string, std::deque<uint64_t>> writes_;  // to one key, in their order; the first is under way
  std::map<uint64_t, std::unique_ptr<Watch>> watches_;
  std::vector<std::unique_ptr<Watch>> buried_;  // stopped; one may be what calls us
  Caller::Id pulse_ = 0;
  bool shutting_ = false;
  std::atomic<uint64_t> under_way_{0};
  std::atomic<uint64_t> bytes_under_way_{0};
};

}  // namespace towline::etcd
