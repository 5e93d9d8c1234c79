// Open MPI, or whatever MPI this was built with, as it comes.
#include <cstdlib>

#include "contender.h"

#ifdef BENCH_HAS_MPI
#include <mpi.h>
#endif

namespace bench {

#ifdef BENCH_HAS_MPI

namespace {

class MpiContender final : public Contender {
 public:
  MpiContender() { MPI_Init(nullptr, nullptr); }
  ~MpiContender() override { MPI_Finalize(); }
  const char* name() const override { return "mpi"; }
  bool run(const std::string& operation, const float* in, float* out, size_t count) override {
    const int n = static_cast<int>(count);
    if (operation == "all_reduce")
      MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (operation == "reduce")
      MPI_Reduce(in, out, n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else if (operation == "broadcast")
      MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (operation == "all_gather")
      MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    else if (operation == "reduce_scatter")
      MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (operation == "gather")
      MPI_Gather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (operation == "scatter")
      MPI_Scatter(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (operation == "all_to_all")
      MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
    else if (operation == "barrier")
      MPI_Barrier(MPI_COMM_WORLD);
    else
      return false;
    return true;
  }
};

}  // namespace

bool built_with_mpi() { return true; }

std::unique_ptr<Contender> make_mpi() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return nullptr;
  return std::make_unique<MpiContender>();
}

#else

bool built_with_mpi() { return false; }
std::unique_ptr<Contender> make_mpi() { return nullptr; }

#endif

}  // namespace bench
