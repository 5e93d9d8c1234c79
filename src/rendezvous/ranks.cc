#include "rendezvous/ranks.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace towline::rendezvous {
namespace {

std::optional<int> number(const Config& config, const char* name) {
  const auto text = config.environment(name);
  if (!text || text->empty()) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size())
    fail(Status::kInvalidArgument, "{}={} in the environment is not a number", name, *text);
  return value;
}

struct Source {
  const char* method;
  const char* rank;
  const char* size;
};
constexpr Source kSources[] = {
    {"towline", "TOWLINE_RANK", "TOWLINE_SIZE"},
    {"mpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"mpi", "PMI_RANK", "PMI_SIZE"},
    {"pals", "PALS_RANKID", "PALS_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS"},
};

}  // namespace

RankAndSize rank_from_environment(const Config& config, std::string_view method) {
  const std::string_view wanted = method.empty() ? "auto" : method;
  if (wanted != "auto" && wanted != "torchrun" && wanted != "mpi" && wanted != "pals" && wanted != "slurm")
    fail(Status::kInvalidArgument,
         "unknown way \"{}\" to find rank and size: auto, torchrun, mpi, pals or slurm", wanted);
  std::string tried;
  for (const Source& source : kSources) {
    if (wanted != "auto" && wanted != source.method) continue;
    const auto rank = number(config, source.rank);
    const auto size = number(config, source.size);
    if (rank && size) {
      if (*size < 1 || *rank < 0 || *rank >= *size)
        fail(Status::kInvalidArgument, "{}={} and {}={} in the environment make no rank of a communicator",
             source.rank, *rank, source.size, *size);
      return {*rank, *size, fmt::format("{} and {}", source.rank, source.size)};
    }
    tried += fmt::format("{}{}/{}", tried.empty() ? "" : ", ", source.rank, source.size);
  }
  fail(Status::kNotFound,
       "no rank and size in the environment (looked for {}): start under torchrun, mpirun or "
       "srun, or give rank and size",
       tried);
}

}  // namespace towline::rendezvous
