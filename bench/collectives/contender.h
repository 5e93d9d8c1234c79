// The contenders: the same operations on the same buffers, float32 sums.
#pragma once

#include <memory>
#include <string>

namespace bench {

class Team;

// Counts are in elements: of the whole buffer for all_reduce, reduce and broadcast, of one rank's part for
// the rest. Every call returns when its result is there; a failure throws std::runtime_error.
class Contender {
 public:
  virtual ~Contender() = default;
  virtual const char* name() const = 0;
  // False where the contender has not the operation.
  virtual bool run(const std::string& operation, const float* in, float* out, size_t count) = 0;
};

std::unique_ptr<Contender> make_bare(Team& team);
// `folder`: where ranks meet. `shared_memory` false: over TCP, though on one host.
std::unique_ptr<Contender> make_towline(Team& team, const std::string& folder, bool shared_memory);
// Null unless this program was built with MPI and runs under mpirun.
std::unique_ptr<Contender> make_mpi();
bool built_with_mpi();

}  // namespace bench
