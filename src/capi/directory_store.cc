#include "capi/directory_store.h"

#include "base/error.h"
#include "towline/directory.h"

namespace towline::capi {
namespace {

void check(int32_t status) {
  if (status < 0) fail(Status{status}, "{}", towline_last_error());
}

class Call {
 public:
  ~Call() { towline_directory_call_release(call_); }
  towline_directory_call_t** out() { return &call_; }
  const towline_directory_call_t* get() const { return call_; }
  void wait() {
    const int32_t status = towline_directory_call_wait(call_, TOWLINE_FOREVER);
    check(status == TOWLINE_NOT_FOUND ? int32_t{TOWLINE_TIMED_OUT} : status);
  }

 private:
  towline_directory_call_t* call_ = nullptr;
};

class DirectoryStore final : public rendezvous::Store {
 public:
  DirectoryStore(towline_agent_t* agent, std::string address) : address_(std::move(address)) {
    check(towline_directory_open(agent, address_.c_str(), &directory_));
  }
  ~DirectoryStore() override { towline_directory_close(directory_, TOWLINE_DEFAULT_TIMEOUT); }

  void set(const std::string& key, std::span<const uint8_t> value) override {
    Call call;
    check(towline_directory_put(directory_, key.c_str(), value.data(), value.size(), TOWLINE_PUT_LEASED,
                                60 * kSecondNs, call.out()));
    call.wait();
  }
  rendezvous::Bytes get(const std::string& key, Deadline deadline) override {
    return find(key, TOWLINE_GET_WAIT, std::max<uint64_t>(deadline.remaining_ns(monotonic_now_ns()), 1));
  }
  // Answers at once if there is no such key, so the time is for a directory that is far away or busy.
  std::optional<rendezvous::Bytes> peek(const std::string& key) override {
    constexpr uint64_t kPatienceNs = 500 * kMillisecondNs;
    try {
      return find(key, 0, kPatienceNs);
    } catch (const Error&) {  // get() says what is wrong
      return std::nullopt;
    }
  }
  std::string describe() const override { return address_; }

 private:
  rendezvous::Bytes find(const std::string& key, uint32_t flags, uint64_t limit_ns) {
    Call call;
    check(towline_directory_get(directory_, key.c_str(), flags, limit_ns, call.out()));
    call.wait();
    towline_directory_entry_t entry = {};
    size_t count = 1;
    check(towline_directory_call_entries(call.get(), &entry, sizeof entry, &count));
    if (count == 0) fail(Status::kNotFound, "{} gave nothing for {}", address_, key);
    const auto* from = static_cast<const uint8_t*>(entry.value);
    return {from, from + entry.bytes};
  }

  const std::string address_;
  towline_directory_t* directory_ = nullptr;
};

}  // namespace

std::shared_ptr<rendezvous::Store> open_directory_store(towline_agent_t* agent, const std::string& address) {
  return std::make_shared<DirectoryStore>(agent, address);
}

}  // namespace towline::capi
