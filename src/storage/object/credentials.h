// The keys that requests are signed with: from the first source that has any, renewed by a thread of their
// own before they expire, so that no request waits for them but the first.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "storage/object/answers.h"
#include "storage/object/settings.h"
#include "towline/plugin/backend.hpp"

namespace towline::object {

class Credentials {
 public:
  // Sends no request yet.
  Credentials(const Settings& settings, const Environment& environment, const plugin::Host& host);
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  // Any thread. Waits for the first keys of a source that must be asked. Throws plugin::Failure naming every
  // source and why it has none.
  void wait_until_ready(uint64_t deadline_ns);
  // The keys now; null: requests go unsigned. Never waits.
  [[nodiscard]] std::shared_ptr<const Keys> now() const;
  // The server says that these have expired: gets others, if that can be. False: there are none to be had.
  bool renew(const std::shared_ptr<const Keys>& expired);
  // "environment", for people; with a reason where renewing fails.
  [[nodiscard]] std::string describe() const;

 private:
  void choose(const Environment& environment);
  void choose_for_azure();
  void choose_for_google();
  void fixed(Keys keys, const char* source);
  [[nodiscard]] bool read_profile_anew(const std::shared_ptr<const Keys>& expired);
  [[nodiscard]] TimedKeys fetch() const;  // throws plugin::Failure
  [[nodiscard]] TimedKeys assume_role() const;
  [[nodiscard]] TimedKeys ask_instance() const;
  [[nodiscard]] TimedKeys ask_identity() const;
  [[nodiscard]] TimedKeys fetch_for_google() const;
  [[nodiscard]] TimedKeys ask_for_account() const;
  void run() noexcept;

  const Settings& settings_;
  const plugin::Host host_;
  Source source_ = Source::kNone;  // that was chosen
  std::string source_name_;
  std::string looked_;  // places without credentials

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const Keys> keys_;
  bool ready_ = false;
  bool asked_ = false;  // new credentials are needed now
  bool told_ = false;   // the use of the instance's metadata service was logged
  std::string failure_;
  uint64_t failures_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // for sources that must be asked
};

}  // namespace towline::object
