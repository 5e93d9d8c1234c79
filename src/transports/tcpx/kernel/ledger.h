// Records changes that this process has made to a NIC, in a file that outlives it: the next process that uses the NIC finds
// and undoes the changes of a killed one.
//
// The folder holds, for each interface, <interface>.users, which every process with a ledger locks as a reader;
// <interface>.turn, locked by the one that begins or ends; <interface>.before, what the NIC was like before its first
// user; and <interface>.<id> of each process, locked by it, with its flow rules. A lock ends with its process.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"

namespace towline::tcpx {

class Ledger {
 public:
  // Waits for other processes that begin or end at this moment; others wait until begun(). Throws Error: the folder
  // can't be made or written.
  Ledger(std::string folder, std::string interface);
  ~Ledger();

  // The NIC is as this process needs it.
  void begun() noexcept { turn_.reset(); }

  // Lines of processes that are gone. They are written off by forget_the_dead(), after they were undone.
  [[nodiscard]] const std::vector<std::string>& left_by_the_dead() const noexcept { return left_; }
  void forget_the_dead();

  // Written before the change is made. Throws Error.
  void add(const std::string& line);
  // After it was undone.
  void remove(const std::string& line);

  // The NIC's settings before its first user; empty if never recorded.
  [[nodiscard]] std::optional<std::string> before() const;
  void set_before(const std::string& text);
  // Calls `restore` with before() if no other process uses the NIC any more. Then before() is forgotten.
  void last_one(const std::function<void(const std::string& before)>& restore);

 private:
  [[nodiscard]] std::string path(const std::string& name) const {
    return folder_ + "/" + interface_ + "." + name;
  }
  void find_the_dead();
  void write_all();

  const std::string folder_;
  const std::string interface_;
  UniqueFd turn_;
  UniqueFd users_;
  UniqueFd mine_;
  std::string my_path_;
  std::vector<std::string> lines_;
  std::vector<std::string> left_;
  std::vector<std::string> dead_;  // files
};

}  // namespace towline::tcpx
