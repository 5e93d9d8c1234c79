// Measures gloo (through torch) and Open MPI in the same run. Beside each Towline rank runs one process of
// each of them, which sleeps while it is not its turn.
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

// One measurement. Counts are in elements of float32: of the whole buffer for all_reduce, reduce and
// broadcast, of one rank's part for the others. For operations with uneven parts: how much this rank sends to
// and receives from each rank.
struct CollectiveJob {
  std::string op;
  uint64_t count = 0;
  std::vector<uint64_t> sends;
  std::vector<uint64_t> receives;
  uint64_t batch = 1;    // operations per sample
  uint64_t samples = 1;  // after one warm-up operation
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CollectiveJob, op, count, sends, receives, batch, samples)

struct PeerPlace {
  std::string folder;  // where the ranks meet
  uint32_t rank = 0;
  uint32_t size = 1;
  bool tcp = false;
  std::string python;  // an interpreter that has torch
};

class CollectivePeer {
 public:
  // Opens the socket to which this rank's process connects. Make it on every rank before any rank starts a
  // process.
  CollectivePeer(std::string kind, PeerPlace place);
  ~CollectivePeer();
  CollectivePeer(const CollectivePeer&) = delete;
  CollectivePeer& operator=(const CollectivePeer&) = delete;

  // Starts this rank's process, if this rank has to, and waits until it connects. False: `why` is the reason.
  bool start(std::string& why);
  [[nodiscard]] const std::string& kind() const { return kind_; }
  [[nodiscard]] const std::string& version() const { return version_; }
  // The time of each sample, seconds for one operation; nothing if the peer does not have the operation.
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

// The body of an Open MPI process: serves jobs from its rank. `folder` as above.
int run_mpi_peer(const std::string& folder);
// The program that Python runs: arguments folder, rank, size.
extern const char* const kGlooPeer;

}  // namespace tool::bench
