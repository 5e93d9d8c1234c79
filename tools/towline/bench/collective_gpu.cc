#include "bench/collective_gpu.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "failure.h"

namespace tool::bench {

Contender::Contender(const std::string& backend, const std::string& store, uint32_t rank, uint32_t size,
                     const std::string& config, uint32_t flags) {
  towline_communicator_options_t options = {};
  options.struct_size = sizeof options;
  options.name = backend.c_str();
  options.backend = backend.c_str();
  options.rank = static_cast<int32_t>(rank);
  options.size = static_cast<int32_t>(size);
  options.bootstrap = store.c_str();
  options.config = config.c_str();
  options.flags = flags;
  options.timeout_ns = 600'000'000'000;  // peers are slow to start
  if (towline_communicator_create(&options, &world_) < 0 || towline_batch_create(world_, &batch_) < 0)
    problem_ = towline_last_error();
}

Contender::~Contender() {
  if (batch_ != nullptr) towline_batch_destroy(batch_);
  if (world_ != nullptr) towline_communicator_destroy(world_);
}

std::string Contender::version() const {
  std::string text(4096, 0);
  size_t needed = 0;
  if (towline_communicator_info(world_, text.data(), text.size(), &needed) < 0 || needed > text.size())
    return "";
  const nlohmann::json info = nlohmann::json::parse(text.c_str(), nullptr, false);
  const std::string found = info.is_object() ? info.value("/details/nccl"_json_pointer, "") : "";
  return found.empty() ? towline_version() : "NCCL " + found;
}

GpuBuffers::GpuBuffers(uint32_t rank, uint64_t floats)
    : in_(static_cast<int>(rank), floats * sizeof(float)),
      out_(static_cast<int>(rank), floats * sizeof(float)) {}

std::string GpuBuffers::config() const {
  return fmt::format("[tuning.collectives]\ngpu = {}\n", in_.device());
}

void GpuBuffers::put_in(const std::vector<float>& from) {
  in_.put(0, from.data(), from.size() * sizeof(float));
}
void GpuBuffers::put_out(const std::vector<float>& from) {
  out_.put(0, from.data(), from.size() * sizeof(float));
}
void GpuBuffers::get_out(std::vector<float>& to) const { out_.get(0, to.data(), to.size() * sizeof(float)); }

}  // namespace tool::bench
