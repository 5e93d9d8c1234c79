// Requests to a server of objects: signed, sent where the bucket is, tried again as long as that may help. Each client is one
// thread with its own connections; all of an instance share the Service.
//
// A call goes through attempts. One place (Client::judge) decides what the end of an attempt means: done,
// failed for good, or again: later (backoff with full jitter), elsewhere (another region), with other keys,
// with the server's clock. While a call waits for its next attempt, its place among the requests at once, and
// in the window, is free for others.
//
// The next few requests are made and signed while answers are awaited, so that an answer is followed by a request at once
// (Client::compose_ahead).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/sync/urgent_first.h"
#include "http/thread.h"
#include "storage/object/credentials.h"
#include "storage/object/names.h"

namespace towline::object {

struct Answer {
  Status status = Status::kInternal;
  long http_status = 0;  // 0: none came
  Headers headers;
  std::string body;        // what no `takes` took
  std::string code;        // the server's word for a refusal
  std::string text;        // for people, when it failed: what, where, why, what to do
  bool uncertain = false;  // an attempt may have taken effect although no answer came

  [[nodiscard]] bool ok() const noexcept { return status == Status::kOk; }
};

// The caller's verdict on an attempt that succeeded at the HTTP level.
struct Verdict {
  Status status = Status::kOk;
  bool retry = false;
  std::string text{};
};

class Client;
class Protocol;

// One request with its attempts. The caller makes and keeps it; everything is called on the client's thread.
class Call : private http::Receiver {
 public:
  Call() = default;
  ~Call() override = default;

  // ---- what
  std::string method;
  ObjectName name;  // no bucket: of the service
  Query query{};
  std::vector<std::pair<std::string, std::string>> headers{};  // lower-case names
  std::string text{};                                          // a small body
  http::Body* body = nullptr;                                  // or a large one
  std::string payload_hash{};                                  // of the large one; empty: it goes unsigned
  uint64_t cost = 0;  // bytes of the window that it takes up while it is under way
  uint64_t deadline_ns = UINT64_MAX;
  bool urgent = false;        // goes before calls that are not
  bool effective = false;     // what it does to an object takes effect when the server has all of it
  bool last_attempt = false;  // there is no attempt after this one

  // ---- callbacks

  // An attempt begins: time to set headers anew.
  std::function<void()> before{};
  // Whether before() would set other headers now: of a request that was made and not sent yet.
  std::function<bool()> outdated{};
  // The head of a good answer is there, its body follows. Not kOk: it is not wanted, and that is why.
  std::function<Verdict(const Answer& answer)> begins{};
  // Bytes of a good answer's body; without it they go to answer.body.
  std::function<Verdict(std::span<const std::byte> bytes)> takes{};
  // A successful answer is complete. Not kOk: its contents are wrong.
  std::function<Verdict(Answer& answer)> check{};
  // The end; the call may be destroyed in it.
  std::function<void(Answer& answer)> done{};

 private:
  friend class Client;
  class Protocol;
  enum class State { kIdle, kReady, kUnderWay, kWaiting };

  bool on_head(long status, const Headers& headers) noexcept override;
  bool on_bytes(std::span<const std::byte> bytes) noexcept override;
  void on_end() override;

  Client* client_ = nullptr;  // that it was last started at
  State state_ = State::kIdle;
  http::Exchange exchange_;
  Answer answer_;
  Verdict refused_;
  bool progressed_ = false;  // bytes were taken in this attempt
  uint32_t attempts_ = 0;
  uint32_t redirects_ = 0;
  bool clock_set_ = false;
  uint64_t composed_ns_ = 0;          // when its request was made, which is not sent yet; 0: it is not made
  std::shared_ptr<const Keys> keys_;  // that this attempt was signed with
  std::unique_ptr<http::TextBody> text_body_;
  std::string where_;  // host, for messages
  Timers::Id timer_ = 0;
  Timers::Id deadline_timer_ = 0;
};

// State shared by all clients of an instance.
class Service {
 public:
  Service(ServerKind kind, const plugin::Host& host, const Environment& environment);
  ~Service();

  // The endpoint to ask for a bucket; any thread. Throws plugin::Failure if no setting names one.
  [[nodiscard]] Endpoint endpoint(const std::string& bucket) const;
  [[nodiscard]] std::string region(const std::string& bucket) const;
  // False: that is where we asked.
  bool redirect(const std::string& bucket, const std::string& region, const std::string& host);

  // The server's clock less ours, in seconds.
  std::atomic<int64_t> clock_offset_s{0};
  // Whether the server has ever answered. If not, its name is probably wrong.
  std::atomic<bool> answered{false};
  // The last error, for people.
  void note_failure(const std::string& text) noexcept;
  // That requests wait for the server: in the log once every ten seconds, since all of them do.
  void note_waiting(const std::string& text);
  [[nodiscard]] std::string last_failure() const;
  // Of a call of the control path that begins now.
  [[nodiscard]] uint64_t control_deadline_ns() const noexcept;

  const plugin::Host host;
  const Settings settings;
  const std::unique_ptr<const Protocol> protocol;
  Credentials credentials;
  std::atomic<uint64_t> retries{0};

 private:
  struct Place {
    std::string region;
    std::string host;  // empty: by the region
  };
  mutable std::mutex mutex_;
  std::map<std::string, Place> places_;
  std::string last_failure_;
  uint64_t waiting_told_ns_ = 0;
};

// A source of calls that waits for room.
class Feeder {
 public:
  virtual ~Feeder() = default;
  // Starts one call. False: no call to start now; the feeder registers again with Client::add_feeder.
  virtual bool feed() = 0;
  // Goes before feeders that are not.
  [[nodiscard]] virtual bool urgent() const noexcept = 0;
};

// What goes on from the client's loop, when nothing of it is on the stack any more.
class Ending {
 public:
  virtual void end() noexcept = 0;  // it may go, and may ask for it again

 protected:
  virtual ~Ending() = default;

 private:
  friend class Client;
  Ending* next_ = nullptr;
};

class Client {
 public:
  // One of `count`, which share the requests that may be under way.
  Client(Service& service, uint32_t count);
  ~Client();  // call when no request is in flight and none will start
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Any thread.
  void run(std::function<void()> command);
  // The tasks that were given to it and are not over.
  void add_task() noexcept { tasks_.fetch_add(1, std::memory_order_relaxed); }
  void remove_task() noexcept { tasks_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] uint32_t tasks() const noexcept { return tasks_.load(std::memory_order_relaxed); }
  // Starts the call and waits for its end. Not from the client's own thread.
  [[nodiscard]] Answer ask(Call& call);

  // ---- on the client's thread

  // Throws nothing: without memory the call ends so.
  void start(Call& call);
  // Nothing of it is called any more.
  void stop(Call& call) noexcept;
  // Once until then. Needs no memory.
  void end_soon(Ending& ending) noexcept;
  void add_feeder(Feeder& feeder);
  void remove_feeder(Feeder& feeder) noexcept;
  // How long a range to ask for, for a feeder that is being asked, has `own` requests that have not ended and reads some `objects`.
  [[nodiscard]] uint64_t range_bytes(uint64_t objects, uint32_t own) const noexcept;
  // Whether the server may have all of this call's request.
  [[nodiscard]] static bool all_sent(const Call& call) noexcept;
  // Whether an answer may come before another attempt is begun.
  [[nodiscard]] static bool under_way(const Call& call) noexcept {
    return call.state_ == Call::State::kUnderWay;
  }
  // Whether an attempt before this one may have taken effect.
  [[nodiscard]] static bool uncertain(const Call& call) noexcept { return call.answer_.uncertain; }
  [[nodiscard]] Timers& timers() noexcept { return thread_.timers(); }
  [[nodiscard]] Service& service() noexcept { return service_; }
  [[nodiscard]] const Settings& settings() const noexcept { return service_.settings; }
  [[nodiscard]] const Protocol& protocol() const noexcept { return *service_.protocol; }
  [[nodiscard]] uint32_t under_way() const noexcept { return under_way_.load(std::memory_order_relaxed); }

 private:
  friend class Call;
  [[nodiscard]] static bool all_sent(const Call& call, uint64_t sent_bytes) noexcept;
  [[nodiscard]] bool room() const noexcept;
  [[nodiscard]] bool fits(const Call& call) const noexcept;
  void turn();
  void pump();
  // True: there were some, and pump() may have more to do.
  bool tell_endings() noexcept;
  [[nodiscard]] bool begin_next();
  [[nodiscard]] bool begin_next(bool urgent);
  void compose_ahead();
  [[nodiscard]] bool feed_ahead();
  template <class Action>
  void attempt(Call& call, Action&& action);
  void compose(Call& call);
  void drop_composed(Call& call) noexcept;
  void begin(Call& call);
  void release(Call& call) noexcept;
  void ended(Call& call);
  void judge(Call& call);
  void judge_refusal(Call& call);
  void again(Call& call, Status status, std::string text, uint64_t delay_ns);
  // The kind of trouble: something is wrong with this request, or a server is away or busy, which
  // passes.
  enum class Trouble { kWrong, kPasses };
  void retry(Call& call, Status status, std::string text, Trouble trouble = Trouble::kWrong);
  [[nodiscard]] bool has_attempts(const Call& call, Trouble trouble) const noexcept;
  void finish(Call& call, Status status, std::string_view text) noexcept;
  [[nodiscard]] uint64_t backoff_ns(const Call& call);

  Service& service_;
  http::Thread thread_;
  std::deque<Call*> ready_;
  std::list<Feeder*> feeders_;  // going to its end takes no memory
  Ending* endings_ = nullptr;
  UrgentFirst turns_;
  const uint32_t most_under_way_;
  const uint64_t most_bytes_;
  std::atomic<uint32_t> under_way_{0};
  std::atomic<uint32_t> tasks_{0};
  uint64_t bytes_under_way_ = 0;
  bool unsent_ = false;  // requests were begun, and libcurl was not asked to send them yet
  uint64_t random_;
};

}  // namespace towline::object
