// What others take for the same operations, in the same run: gloo through torch, and Open MPI. Beside each of
// our ranks stands a process of each of them, which sleeps while it is not its turn.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "channel.h"

namespace tool::bench {

// What is measured, in elements of float32: of the whole buffer for all_reduce, reduce and broadcast, of one
// rank's part for the others; of operations with uneven parts, what this rank sends to and gets from each.
struct CollectiveJob {
  std::string op;
  uint64_t count = 0;
  std::vector<uint64_t> sends;
  std::vector<uint64_t> receives;
  uint64_t batch = 1;    // operations of a sample
  uint64_t samples = 1;  // after one operation that warms up
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveJob, op, count, sends, receives, batch, samples)

struct PeerPlace {
  std::string folder;  // where the ranks meet
  uint32_t rank = 0;
  uint32_t size = 1;
  bool tcp = false;
  std::string python;  // that has torch
};

class CollectivePeer {
 public:
  // Makes the place where the process of ours is to call: on every rank, before any of them starts one.
  CollectivePeer(std::string kind, PeerPlace place);
  ~CollectivePeer();
  CollectivePeer(const CollectivePeer&) = delete;
  CollectivePeer& operator=(const CollectivePeer&) = delete;

  // Starts what is to be started on this rank, and waits for the call. False: `why` says why it is not here.
  bool start(std::string& why);
  [[nodiscard]] const std::string& kind() const { return kind_; }
  [[nodiscard]] const std::string& version() const { return version_; }
  // The time of each sample, seconds for one operation; nothing where it has not the operation.
  std::optional<std::vector<double>> run(const CollectiveJob& job);

 private:
  void spawn(const std::vector<std::string>& command);
  [[nodiscard]] std::string path() const;
  [[nodiscard]] std::string last_words() const;

  const std::string kind_;
  const PeerPlace place_;
  std::string version_;
  int listener_ = -1;
  pid_t process_ = -1;
  std::unique_ptr<Channel> channel_;
};

// Serves jobs from the rank's process: the body of one of Open MPI's. `folder` as above.
int run_mpi_peer(const std::string& folder);
// The program that Python runs: arguments folder, rank, size.
extern const char* const kGlooPeer;

}  // namespace tool::bench
