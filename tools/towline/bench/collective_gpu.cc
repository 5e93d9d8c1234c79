#include "bench/collective_gpu.h"

#include <fmt/format.h>

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

nlohmann::json Contender::details() const {
  std::string text(65536, 0);
  size_t needed = 0;
  if (towline_communicator_info(world_, text.data(), text.size(), &needed) < 0 || needed > text.size())
    return nlohmann::json::object();
  const nlohmann::json info = nlohmann::json::parse(text.c_str(), nullptr, false);
  const auto found = info.is_object() ? info.find("details") : info.end();
  return found != info.end() && found->is_object() ? *found : nlohmann::json::object();
}

std::string Contender::version() const {
  const nlohmann::json info = details();
  const auto found = info.find("nccl");
  return found == info.end() || !found->is_string() ? towline_version() : "NCCL " + found->get<std::string>();
}

uint64_t Contender::given_to_nccl() const { return details().value("nccl_operations", uint64_t{0}); }
std::string Contender::no_nccl() const { return details().value("no_nccl", ""); }

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
